//! Threads that read. Each has a connection and a queue; it answers what waits without sleeping in between, so that under load one
//! wake-up serves many readers.
//!
//! Short reads (a stream, an account) and scans (pages of the log, snapshots) have lanes of their own: a rebuild delays no
//! balance. A read never waits for a writer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::error::{OpenError, store_error};
use super::{Options, open, patience};
use crate::store::StoreError;

type Work = Box<dyn FnOnce(&Connection) + Send>;

/// How many threads answer short reads.
const READ_LANES: usize = 2;

/// How many threads scan.
const SCAN_LANES: usize = 2;

/// How many reads may wait per lane.
const LANE_QUEUE: usize = 4_096;

#[derive(Debug)]
pub(super) struct Lanes {
    read: Vec<mpsc::Sender<Work>>,
    scan: Vec<mpsc::Sender<Work>>,
    next: AtomicUsize,
}

impl Lanes {
    pub(super) fn start(options: &Options) -> Result<Self, OpenError> {
        let start = |name: &str, count: usize| -> Result<Vec<_>, OpenError> {
            (0..count).map(|_| start_lane(name, options)).collect()
        };
        Ok(Self {
            read: start("recoup-read", READ_LANES)?,
            scan: start("recoup-scan", SCAN_LANES)?,
            next: AtomicUsize::new(0),
        })
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(&self.read, work).await
    }

    pub(super) async fn scan<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(&self.scan, work).await
    }

    async fn send<T: Send + 'static>(
        &self,
        lanes: &[mpsc::Sender<Work>],
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::Unavailable {
            cause: "a reading thread has ended".to_owned(),
        };
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            // Whoever asked may be gone: a dropped future withdraws nothing and wants nothing.
            let _ = reply.send(work(connection));
        });
        let lane = self.next.fetch_add(1, Ordering::Relaxed) % lanes.len();
        lanes[lane].send(work).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

fn start_lane(name: &str, options: &Options) -> Result<mpsc::Sender<Work>, OpenError> {
    let connection = open::open_reader(options)?;
    let busy_timeout = options.busy_timeout;
    let (sender, mut queue) = mpsc::channel::<Work>(LANE_QUEUE);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            if let Err(error) = patience::install(&connection, busy_timeout) {
                tracing::error!(%error, "reads of this thread will not wait for a recovery");
            }
            while let Some(work) = queue.blocking_recv() {
                work(&connection);
            }
        })
        .map_err(|error| OpenError::Io {
            why: format!("no thread for reading: {error}"),
        })?;
    Ok(sender)
}

/// Runs `work` between BEGIN and ROLLBACK: a read transaction has nothing to commit.
pub(super) fn in_snapshot<T, E: From<StoreError>>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    connection.execute_batch("BEGIN").map_err(store_error)?;
    let result = work(connection);
    connection.execute_batch("ROLLBACK").map_err(store_error)?;
    result
}
