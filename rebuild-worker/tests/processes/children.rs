//! Children that end with their test, and bounded waits for what they do.

use std::fmt::Debug;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A child that is killed when it is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Sends a signal by its name, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill")
            .args([&format!("-{name}"), &self.0.id().to_string()])
            .status();
        assert!(sent.expect("kill can be run").success(), "kill -{name}");
    }

    /// Whether each of its threads is stopped: a signal takes a moment to reach the ones that run.
    pub(crate) fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        threads.expect("it runs").all(|thread| {
            let stat =
                thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
            // "number (name) state …": a name may hold anything.
            stat.is_ok_and(|stat| {
                stat.rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.starts_with(" T"))
            })
        })
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually("the child ends", || {
            self.0.try_wait().expect("it can be waited for")
        })
    }
}

/// Waits until `look` finds something; panics with what was waited for when the patience is over.
pub(crate) fn eventually<T: Debug>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "waited {PATIENCE:?} in vain: {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}
