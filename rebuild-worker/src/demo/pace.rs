//! How the seconds of a plan pass: on an injected clock, at once; over a log that stamps events by its server's clock, in haste.

use std::time::Duration;

use recoup::{Clock, ManualClock, Policy, SystemClock, Timestamp};

/// How many seconds of the plan pass in one of the server's: the three days in 36 s and the time that the commands take.
pub(super) const HASTE: u32 = 7_200;

/// A clock for a plan.
#[derive(Debug)]
pub(super) enum Pace {
    /// The ledger's clock is set to each second of the plan.
    Injected {
        /// The ledger's clock.
        clock: ManualClock,
        /// When the first day begins.
        begin: Timestamp,
    },
    /// The ledger's clock is a server's: between two seconds of the plan passes what lies between them, so many times as fast.
    Hasty {
        /// How many seconds of the plan pass in one.
        haste: u32,
        /// The second that it is.
        at_s: u32,
    },
}

impl Pace {
    pub(super) const fn hasty(haste: u32) -> Self {
        Self::Hasty { haste, at_s: 0 }
    }

    /// How many times as fast as in the plan timers run out.
    pub(super) fn haste(&self) -> u32 {
        match self {
            Self::Injected { .. } => 1,
            Self::Hasty { haste, .. } => *haste,
        }
    }

    /// The time that it is; of a server's, by this machine's clock.
    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::Injected { clock, .. } => clock.now(),
            Self::Hasty { .. } => SystemClock.now(),
        }
    }

    /// Waits for a second of the plan, or makes it be. However long the commands before it took, what lies between passes after them: what was
    /// due in the plan is due then.
    pub(super) async fn move_to(&mut self, to_s: u32) {
        match self {
            Self::Injected { clock, begin } => {
                clock.set(begin.after(Duration::from_secs(u64::from(to_s))));
            }
            Self::Hasty { haste, at_s } => {
                let between = Duration::from_secs(u64::from(to_s.saturating_sub(*at_s)));
                tokio::time::sleep(between / *haste).await;
                *at_s = to_s;
            }
        }
    }
}

/// The policy whose timers run out so many times as fast. A lease stays: it is longer than any attempt of the plan either way, and a machine may stall.
pub(super) fn hurried(policy: Policy, haste: u32) -> Policy {
    let shorter = |ms: u64| (ms / u64::from(haste)).max(1);
    Policy {
        first_delay_ms: shorter(policy.first_delay_ms),
        max_delay_ms: shorter(policy.max_delay_ms),
        window_ms: shorter(policy.window_ms),
        start_within_ms: shorter(policy.start_within_ms),
        ..policy
    }
}

#[cfg(test)]
mod tests {
    use recoup::Mode;

    use super::*;

    #[test]
    fn timers_run_out_so_many_times_as_fast() {
        let policy = Policy::default_for(Mode::Claimed);
        assert_eq!(hurried(policy, 1), policy);
        let hurried = hurried(policy, HASTE);
        // 24 h, 10 min and 5 s; the last is below a millisecond.
        assert_eq!(hurried.window_ms, 12_000);
        assert_eq!((hurried.max_delay_ms, hurried.first_delay_ms), (83, 1));
        assert_eq!(hurried.lease_ms, policy.lease_ms);
        assert!(hurried.check().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_between_two_seconds_passes_after_the_commands_of_the_first() {
        let mut pace = Pace::hasty(100);
        let begun = tokio::time::Instant::now();
        pace.move_to(500).await;
        // The commands of that second.
        tokio::time::sleep(Duration::from_secs(3)).await;
        pace.move_to(1_000).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(5 + 3 + 5));
    }
}
