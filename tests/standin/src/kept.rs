//! A stand-in for tests that know nothing of it: on a thread and a runtime of its own, with the clock of whoever opened the ledger last.

use std::sync::{Arc, Mutex, PoisonError, mpsc};

use recoup::clock::{Clock, SystemClock};
use recoup::store::fresh::{LogServer, keep_logs_on};
use tokio::sync::oneshot;

use crate::Standin;

/// From here on fresh ledgers over KurrentDB have a stand-in each.
pub fn keep_logs() {
    keep_logs_on(|| Arc::new(Kept::start()));
}

#[derive(Debug)]
struct Kept {
    connection: String,
    clock: Arc<Mutex<Arc<dyn Clock>>>,
    /// Dropped, it ends the thread.
    _end: oneshot::Sender<()>,
}

impl Kept {
    fn start() -> Self {
        let clock: Arc<Mutex<Arc<dyn Clock>>> = Arc::new(Mutex::new(Arc::new(SystemClock)));
        let shared = Arc::clone(&clock);
        let ticks = move || {
            let clock = shared.lock().unwrap_or_else(PoisonError::into_inner);
            clock.now().as_micros().unsigned_abs() * 10
        };
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let standin = Standin::with(1, Arc::new(ticks)).await;
                let _ = tell.send(standin.connection_string());
                let _ = ended.await;
            });
        });
        Self {
            connection: told.recv().expect("the stand-in starts"),
            clock,
            _end: end,
        }
    }
}

impl LogServer for Kept {
    fn connection(&self) -> String {
        self.connection.clone()
    }

    fn stamp_by(&self, clock: Arc<dyn Clock>) {
        *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }
}
