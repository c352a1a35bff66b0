//! Threads that read. Each has a connection; those of one kind share a queue, so that a long read delays nobody while another
//! thread is free. Under load they go from one request to the next without sleeping.
//!
//! Short reads (a stream, an account) and scans (pages of the log, snapshots) have lanes of their own: a rebuild delays no
//! balance. A read never waits for a writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::error::store_error;
use super::writer::roll_back;
use super::{Options, open, patience};
use crate::store::{OpenError, StoreError};

type Work = Box<dyn FnOnce(&Connection) + Send>;

/// How many threads answer short reads.
const READ_LANES: usize = 2;

/// How many threads scan.
const SCAN_LANES: usize = 2;

/// How many reads of one kind may wait.
const LANE_QUEUE: usize = 8_192;

#[derive(Debug)]
pub(super) struct Lanes {
    read: mpsc::Sender<Work>,
    scan: mpsc::Sender<Work>,
}

impl Lanes {
    pub(super) fn start(options: &Options) -> Result<Self, OpenError> {
        Ok(Self {
            read: start_lanes("recoup-read", READ_LANES, options)?,
            scan: start_lanes("recoup-scan", SCAN_LANES, options)?,
        })
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        send(&self.read, work).await
    }

    pub(super) async fn scan<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        send(&self.scan, work).await
    }
}

async fn send<T: Send + 'static>(
    queue: &mpsc::Sender<Work>,
    work: impl FnOnce(&Connection) -> T + Send + 'static,
) -> Result<T, StoreError> {
    let gone = || StoreError::Unavailable {
        cause: "the read or its thread died".to_owned(),
    };
    let (reply, answer) = oneshot::channel();
    let work: Work = Box::new(move |connection| {
        // Whoever asked may be gone, and then wants no answer.
        let _ = reply.send(work(connection));
    });
    queue.send(work).await.map_err(|_| gone())?;
    answer.await.map_err(|_| gone())
}

fn start_lanes(
    name: &str,
    count: usize,
    options: &Options,
) -> Result<mpsc::Sender<Work>, OpenError> {
    let (sender, queue) = mpsc::channel::<Work>(LANE_QUEUE);
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..count {
        let (queue, connection) = (Arc::clone(&queue), open::open_reader(options)?);
        let busy_timeout = options.busy_timeout;
        let lane = move || {
            if let Err(error) = patience::install(&connection, busy_timeout) {
                tracing::error!(%error, "reads of this thread will not wait for a recovery");
            }
            // The lock is held while this thread waits for work, and given up before it does it.
            while let Some(work) = {
                queue
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .blocking_recv()
            } {
                // A panic answers nobody; the lane goes on.
                if catch_unwind(AssertUnwindSafe(|| work(&connection))).is_err() {
                    tracing::error!("a read panicked");
                }
            }
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(lane)
            .map_err(|error| OpenError::Io {
                why: format!("no thread for reading: {error}"),
            })?;
    }
    Ok(sender)
}

/// Runs `work` between BEGIN and ROLLBACK: a read transaction has nothing to commit.
pub(super) fn in_snapshot<T, E: From<StoreError>>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E> {
    // One that panicked or could not be ended is ended first.
    roll_back(connection);
    connection.execute_batch("BEGIN").map_err(store_error)?;
    let result = work(connection);
    roll_back(connection);
    result
}
