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

/// How far the log is known to go. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// By whomever it was appended.
    head: watch::Sender<Position>,
    /// As far as this process has appended: what the others are told.
    ours: watch::Sender<Position>,
}

impl Known {
    pub(super) fn up_to(head: Position) -> Self {
        Self {
            head: watch::Sender::new(head),
            ours: watch::Sender::new(head),
        }
    }

    /// This process has committed.
    pub(super) fn committed(&self, head: Position) {
        self.ours.send_replace(head);
        self.heard(head);
    }

    /// The log ends there, or later.
    fn heard(&self, position: Position) {
        self.head.send_if_modified(|known| {
            let is_news = position > *known;
            if is_news {
                *known = position;
            }
            is_news
        });
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Position> {
        self.head.subscribe()
    }
}

/// The tasks that tell and listen; they end with it.
#[derive(Debug)]
pub(super) struct Hints([JoinHandle<()>; 2]);

impl Drop for Hints {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

impl Hints {
    pub(super) fn start(place: &Place, pool: &Pool, known: &Known) -> Self {
        let channel = format!("recoup_{:x}", place.locks().log);
        let tell = tell(channel.clone(), pool.clone(), known.ours.subscribe());
        let listen = listen(channel, place.clone(), known.clone());
        Self([tokio::spawn(tell), tokio::spawn(listen)])
    }
}

async fn tell(channel: String, pool: Pool, mut ours: watch::Receiver<Position>) {
    while ours.changed().await.is_ok() {
        tokio::time::sleep(GATHER).await;
        let position = ours.borrow_and_update().to_string();
        let sql = "SELECT pg_notify($1, $2)";
        pool.tell(sql, &channel, &position).await;
    }
}

async fn listen(channel: String, place: Place, known: Known) {
    loop {
        if let Err(error) = listen_once(&channel, &place, &known).await {
            tracing::debug!(%error, "appends of other processes are not heard of");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen_once(channel: &str, place: &Place, known: &Known) -> Result<(), sqlx::Error> {
    let one = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(place.options().clone());
    let mut listener = PgListener::connect_with(&one).await?;
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    // None: the connection was lost.
    while let Some(notice) = listener.try_recv().await? {
        if let Ok(position) = notice.payload().parse() {
            known.heard(Position::new(position));
        }
    }
    Ok(())
}
