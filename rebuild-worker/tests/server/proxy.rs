//! A TCP proxy in front of a PostgreSQL server that knows where a COMMIT is, and loses it or its answer.
//!
//! It reads the frontend's messages (a startup message, then a type byte and a length of four bytes each,
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>) and passes them on as they are. No TLS: the URL has to say `sslmode=disable`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What becomes of a COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Fine,
    /// It reaches the server; the client hears nothing, and its connection is cut.
    AnswerLost,
    /// It does not reach the server, whose connection is cut, too.
    RequestLost,
    /// The client's connection is cut, and it stays in the network until it is let go.
    Held,
}

#[derive(Debug, Default)]
struct State {
    /// The fates of the next COMMITs; past their end all is fine.
    fates: Mutex<VecDeque<Fate>>,
    let_go: Notify,
    /// How many were not fine.
    met: AtomicU64,
}

pub(crate) struct Proxy {
    state: Arc<State>,
    /// Leads to the server, through it.
    pub(crate) url: String,
}

impl Proxy {
    /// Stands in front of the server that `url` leads to.
    pub(crate) async fn before(url: &str) -> Self {
        let (head, rest) = url.split_once('@').expect("user@host");
        let (server, path) = rest.split_once('/').expect("host/database");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let mark = if path.contains('?') { '&' } else { '?' };
        let url = format!("{head}@127.0.0.1:{port}/{path}{mark}sslmode=disable");
        let state = Arc::<State>::default();
        let (server, shared) = (server.to_owned(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&server).await {
                    tokio::spawn(pass(client, server, Arc::clone(&shared)));
                }
            }
        });
        Self { state, url }
    }

    /// Adds to the fates of the COMMITs to come.
    pub(crate) fn then(&self, fates: impl IntoIterator<Item = Fate>) {
        self.state
            .fates
            .lock()
            .expect("nobody panicked")
            .extend(fates);
    }

    /// Lets a COMMIT go that is held.
    pub(crate) fn let_go(&self) {
        self.state.let_go.notify_one();
    }

    /// How many COMMITs were not fine.
    pub(crate) fn met(&self) -> u64 {
        self.state.met.load(Ordering::SeqCst)
    }
}

async fn pass(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let is_deaf = Arc::new(AtomicBool::new(false));
    let back = tokio::spawn(answers(from_server, to_client, Arc::clone(&is_deaf)));
    // Whatever ends it, both connections go with it.
    let _ = requests(from_client, to_server, &state, &is_deaf, &back).await;
    back.abort();
}

/// Passes answers on until one is to be lost.
async fn answers(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, is_deaf: Arc<AtomicBool>) {
    let mut buffer = vec![0; 65_536];
    while let Ok(read) = server.read(&mut buffer).await {
        if read == 0 || is_deaf.load(Ordering::SeqCst) {
            return;
        }
        if client.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    state: &State,
    is_deaf: &AtomicBool,
    back: &tokio::task::JoinHandle<()>,
) -> std::io::Result<()> {
    let startup = message(&mut client, 0).await?;
    server.write_all(&startup).await?;
    loop {
        let message = message(&mut client, 1).await?;
        let fate = if message.starts_with(b"Q") && message.ends_with(b"COMMIT\0") {
            let mut fates = state.fates.lock().expect("nobody panicked");
            fates.pop_front().unwrap_or(Fate::Fine)
        } else {
            Fate::Fine
        };
        if fate != Fate::Fine {
            state.met.fetch_add(1, Ordering::SeqCst);
        }
        match fate {
            Fate::Fine => server.write_all(&message).await?,
            Fate::AnswerLost => {
                is_deaf.store(true, Ordering::SeqCst);
                server.write_all(&message).await?;
                // Ends with the answer.
                while !back.is_finished() {
                    tokio::task::yield_now().await;
                }
                return Ok(());
            }
            Fate::RequestLost => return Ok(()),
            Fate::Held => {
                // The client's side is gone once nobody writes to it; the server's stays as it is.
                back.abort();
                drop(client);
                state.let_go.notified().await;
                server.write_all(&message).await?;
                // The server carries it out though nobody listens; a half-closed connection is not a broken one.
                server.shutdown().await?;
                return Ok(());
            }
        }
    }
}

/// A whole message: `kind` bytes of type, then the length, which counts itself.
async fn message(client: &mut OwnedReadHalf, kind: usize) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; kind + 4];
    client.read_exact(&mut message).await?;
    let length = u32::from_be_bytes(message[kind..].try_into().expect("four bytes"));
    let rest = (length as usize).saturating_sub(4);
    message.resize(kind + 4 + rest, 0);
    client.read_exact(&mut message[kind + 4..]).await?;
    Ok(message)
}
