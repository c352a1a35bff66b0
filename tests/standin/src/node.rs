//! A node: a port that is open while it lives, and connections that can be cut: at once, or where its meter says.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::traffic::{Direction, Frames, Meter, Traffic, Unit};

/// How long a port may be taken by somebody else before a test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Life {
    /// Ends the node.
    end: CancellationToken,
    /// Ends its connections.
    cut: CancellationToken,
    server: Option<JoinHandle<()>>,
}

/// One node of the stand-in.
#[derive(Debug)]
pub(crate) struct Node {
    port: u16,
    life: Mutex<Life>,
    meter: Mutex<Meter>,
}

impl Node {
    /// Takes a free port, without opening it.
    pub(crate) async fn reserve() -> (Self, TcpListener) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("the machine has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (life, meter) = (Mutex::default(), Mutex::default());
        (Self { port, life, meter }, listener)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Serves `router` on the node's port.
    pub(crate) async fn open(
        self: &Arc<Self>,
        listener: Option<TcpListener>,
        router: tonic::transport::server::Router,
    ) {
        let listener = match listener {
            Some(listener) => listener,
            None => self.bind().await,
        };
        let end = CancellationToken::new();
        let node = Arc::clone(self);
        self.with(|life| {
            life.end = end.clone();
            life.cut = CancellationToken::new();
        });
        let incoming = TcpListenerStream::new(listener).map(move |stream| {
            let stream = stream?;
            stream.set_nodelay(true)?;
            let cut = node.with(|life| life.cut.clone());
            Ok::<_, io::Error>(Guarded {
                stream,
                cut: Box::pin(cut.cancelled_owned()),
                node: Arc::clone(&node),
                sent: Frames::of(Direction::FromNode),
                received: Frames::of(Direction::ToNode),
            })
        });
        let server = tokio::spawn(async move {
            let served = router.serve_with_incoming_shutdown(incoming, end.cancelled_owned());
            // Connections that were cut are errors of their own; the server's is that of a port that went away.
            served.await.ok();
        });
        self.with(|life| life.server = Some(server));
    }

    /// The node's port may still be held by connections that are closing.
    async fn bind(&self) -> TcpListener {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let bound = tokio::time::timeout(PATIENCE, async {
            loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        match bound.await {
            Ok(listener) => listener,
            Err(_) => panic!("{address} is taken by another program"),
        }
    }

    /// Cuts every connection. The next one is welcome.
    pub(crate) fn cut(&self) {
        let cut = self.with(|life| std::mem::take(&mut life.cut));
        cut.cancel();
    }

    /// Closes the port and cuts every connection; returns when the port is closed.
    pub(crate) async fn close(&self) {
        let server = self.with(|life| {
            life.end.cancel();
            life.cut.cancel();
            life.server.take()
        });
        if let Some(server) = server {
            server.await.ok();
        }
    }

    pub(crate) fn arm(&self, direction: Direction, unit: Unit, count: u64) {
        self.meter().arm(direction, unit, count);
    }

    pub(crate) fn defuse(&self) -> bool {
        self.meter().defuse()
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.meter().traffic()
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn abandon(&self) {
        self.with(|life| {
            life.end.cancel();
            life.cut.cancel();
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut Life) -> T) -> T {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut life)
    }
}

/// A connection that breaks when it is told to.
struct Guarded {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    node: Arc<Node>,
    sent: Frames,
    received: Frames,
}

impl Guarded {
    /// Counts what was read behind `before`, and takes back what came after the fuse had blown; says whether it has.
    fn pass(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> bool {
        let direction = Direction::ToNode;
        let node = Arc::clone(&self.node);
        let mut meter = node.meter();
        let read = &buffer.filled()[before..];
        if read.is_empty() {
            return false;
        }
        let allowed = meter.allows(direction, &self.received, read);
        let is_blown = meter.passed(direction, &mut self.received, &read[..allowed]);
        buffer.set_filled(before + allowed);
        is_blown
    }

    fn is_cut(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_cut(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.pass(buffer, before) {
            self.node.cut();
            self.is_cut(context)?;
        }
        // The client waits for an acknowledgement before it sends the rest of a small request; delayed as usual, it costs each one 40 ms.
        #[cfg(target_os = "linux")]
        self.stream.set_quickack(true)?;
        read
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_cut(context)?;
        let direction = Direction::FromNode;
        let allowed = self.node.meter().allows(direction, &self.sent, bytes);
        let written = if allowed == 0 && !bytes.is_empty() {
            0
        } else {
            ready!(Pin::new(&mut self.stream).poll_write(context, &bytes[..allowed]))?
        };
        let (node, written) = (Arc::clone(&self.node), &bytes[..written]);
        let is_blown = node.meter().passed(direction, &mut self.sent, written);
        if is_blown {
            node.cut();
            self.is_cut(context)?;
        }
        Poll::Ready(Ok(written.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_cut(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context)).ok();
        Poll::Ready(Ok(()))
    }
}

impl Connected for Guarded {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}
