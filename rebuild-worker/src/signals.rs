//! The signals that end a process in peace.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM. Made before anything is announced: who reads the announcement may send one.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on both are heard, and do not kill.
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("no handler for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("no handler for SIGTERM")?,
        })
    }

    /// Waits for the next one, whichever it is.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
