//! `recoup up`: everything in one process, under supervision.
//!
//! [`supervisor`] runs named loops and starts them again, [`status`] is what a loop says of itself, [`loops`] is the list of them;
//! [`health`] judges, [`http`] answers `/healthz`, `/readyz` and `/metrics`.
//!
//! What holds:
//!
//! - No loop takes another one down with it: one that ends, fails or panics is started again after a pause; one that meets what time
//!   does not heal is *stopped*, says why, and is looked at again now and then, so that a repair needs no restart.
//! - Nothing here decides what is right. Loops act by guarded appends and by compare and set, so that any number of these processes may
//!   run on one ledger at once; there is no leader and no lock.
//! - Readiness and lag are measured when they are asked for, from the store, in one snapshot. What a loop remembers is never shown as
//!   if it were so.
//! - SIGTERM or SIGINT ends it in peace: loops finish what they are at, for at most [`STOP_BOUND`]. A second signal ends it at once.
//!   What was committed stays committed, whole, either way.

pub mod health;
mod http;
mod loops;
pub mod status;
pub mod supervisor;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::Context;
use recoup::Ledger;
use recoup_projections::Projections;

use self::status::LoopView;
use self::supervisor::Supervisor;
use crate::metrics;
use crate::signals::Signals;

/// How long loops may take to end in peace.
const STOP_BOUND: Duration = Duration::from_secs(10);

/// What the loops work on.
#[derive(Debug, Clone)]
pub struct Handles {
    /// Commands on it.
    pub ledger: Ledger,
    /// Its projections.
    pub projections: Projections,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Every loop, as it was at the end.
    pub loops: Vec<LoopView>,
    /// Those that had not ended when they were waited for no longer.
    pub unfinished: Vec<&'static str>,
}

/// Takes the address to listen on, so that it is known to be free before anything begins.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.with_context(|| format!("cannot listen on {address}"))
}

/// Runs every loop until a signal comes.
pub async fn run(handles: Handles, listener: TcpListener, mut signals: Signals) -> Ended {
    let exporter = metrics::install();
    let mut supervisor = Supervisor::default();
    let app = http::App::new(handles.projections.clone(), supervisor.loops(), exporter);
    loops::start(&mut supervisor, &handles);
    http::start(&mut supervisor, listener, app);
    signals.next().await;
    tracing::info!("stopping");
    let unfinished = tokio::select! {
        unfinished = supervisor.stop(STOP_BOUND) => unfinished,
        () = signals.next() => Vec::new(),
    };
    let loops = supervisor.loops().views();
    let unfinished = if unfinished.is_empty() {
        let alive = loops.iter().filter(|view| !view.has_ended());
        alive.map(|view| view.name).collect()
    } else {
        unfinished
    };
    Ended { loops, unfinished }
}
