//! That something was appended, told from process to process by LISTEN and NOTIFY.
//!
//! A hint only: whoever waits for events looks at the log now and then as well. NOTIFY is sent behind the appends, by a transaction of its own: inside theirs it would take a lock that
//! all databases of the server share, and keep it over the commit. Under load one notice stands for many appends.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::open::Place;
use super::pool::Pool;
use crate::store::Position;

/// How long appends gather for one notice.
const GATHER: Duration = Duration::from_millis(20);

/// How long to wait for a server that cannot be listened to.
const PAUSE: Duration = Duration::from_secs(2);

/// The tasks that tell and listen; they end with it.
#[derive(Debug)]
pub(super) struct Hints {
    head: watch::Sender<Position>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Hints {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Hints {
    /// Starts them. `committed` is set by whoever appends here.
    pub(super) fn start(place: &Place, pool: &Pool, committed: watch::Sender<Position>) -> Self {
        let channel = format!("recoup_{:x}", place.locks().log);
        let head = watch::Sender::new(*committed.borrow());
        let tell = tell(
            channel.clone(),
            pool.clone(),
            committed.subscribe(),
            head.clone(),
        );
        let listen = listen(channel, place.clone(), head.clone());
        Self {
            head,
            tasks: [tokio::spawn(tell), tokio::spawn(listen)],
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }
}

/// The log is known to end there, or later.
fn publish(head: &watch::Sender<Position>, position: Position) {
    head.send_if_modified(|known| {
        let is_news = position > *known;
        if is_news {
            *known = position;
        }
        is_news
    });
}

async fn tell(
    channel: String,
    pool: Pool,
    mut committed: watch::Receiver<Position>,
    head: watch::Sender<Position>,
) {
    while committed.changed().await.is_ok() {
        let position = *committed.borrow_and_update();
        publish(&head, position);
        tokio::time::sleep(GATHER).await;
        let position = *committed.borrow_and_update();
        publish(&head, position);
        let sql = "SELECT pg_notify($1, $2)";
        pool.tell(sql, &channel, &position.to_string()).await;
    }
}

async fn listen(channel: String, place: Place, head: watch::Sender<Position>) {
    loop {
        if let Err(error) = listen_once(&channel, &place, &head).await {
            tracing::debug!(%error, "appends of other processes are not heard of");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen_once(
    channel: &str,
    place: &Place,
    head: &watch::Sender<Position>,
) -> Result<(), sqlx::Error> {
    let one = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(place.options().clone());
    let mut listener = PgListener::connect_with(&one).await?;
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    // None: the connection was lost.
    while let Some(notice) = listener.try_recv().await? {
        if let Ok(position) = notice.payload().parse() {
            publish(head, Position::new(position));
        }
    }
    Ok(())
}
