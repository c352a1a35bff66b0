//! Retry policy: how often, how soon, how long.
//!
//! With `k` starts since the last redrive (or the charge), the next attempt is due after
//! `min(first_delay × 2^(k−1), max_delay) × (1 + j)`. The jitter `j`, in `[0, 0.2)`, is a hash of job and attempt: the same
//! in every process that decides the same stream, different between jobs, so that a fleet that stalled together does not
//! come back at one instant. Cap and window count starts and time since the last redrive (or the charge).
#![warn(clippy::arithmetic_side_effects, clippy::wildcard_enum_match_arm)]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, derive};
use crate::job::Attempt;

/// Who starts attempts, and who decides on the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The service runs and retries by itself; a failure ends in `Failed`. No dead letter, and no hold unless the service calls `start`.
    External,
    /// Workers start attempts through the ledger; retries and dead letters are the ledger's.
    Claimed,
}

impl Mode {
    /// As it is written in commands and configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Claimed => "claimed",
        }
    }
}

/// How a job's attempts are run. Copied into the charge: a later change of configuration moves no running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Who starts attempts.
    pub mode: Mode,
    /// The most starts since the charge or the last redrive.
    pub cap: u32,
    /// The delay before the second attempt, in milliseconds.
    pub first_delay_ms: u64,
    /// The longest delay, in milliseconds.
    pub max_delay_ms: u64,
    /// How long after the charge or the last redrive another attempt may become due, in milliseconds.
    pub window_ms: u64,
    /// How long an attempt may wait to be started once it is due, in milliseconds.
    pub start_within_ms: u64,
    /// How long a started attempt may run without a sign of life, in milliseconds.
    pub lease_ms: u64,
}

/// The most starts that a policy may allow: with its events per attempt, a stream stays below its bound.
pub const MAX_CAP: u32 = 100;

/// How long a started attempt may run without a sign of life, where a start asks for another time than its policy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(u64);

impl Lease {
    /// Takes 1 to [`MAX_DURATION_MS`] milliseconds: what a policy's lease may be.
    pub const fn from_ms(ms: u64) -> Result<Self, PolicyError> {
        if ms < 1 || ms > MAX_DURATION_MS {
            return Err(PolicyError {
                field: "lease_ms",
                value: ms,
                min: 1,
                max: MAX_DURATION_MS,
            });
        }
        Ok(Self(ms))
    }

    /// The milliseconds.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }
}

impl TryFrom<Duration> for Lease {
    type Error = PolicyError;

    fn try_from(duration: Duration) -> Result<Self, PolicyError> {
        Self::from_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The longest duration of a policy: 366 days, in milliseconds.
pub const MAX_DURATION_MS: u64 = 366 * 24 * 60 * 60 * 1000;

/// Why a policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy: {field} {value} is not between {min} and {max}")]
pub struct PolicyError {
    /// Which of its numbers.
    pub field: &'static str,
    /// What it is.
    pub value: u64,
    /// The smallest that is allowed.
    pub min: u64,
    /// The largest that is allowed.
    pub max: u64,
}

impl Policy {
    /// The defaults: cap 5, delays from 5 s to 10 min, window 24 h, to be started within 24 h, lease 60 s.
    #[must_use]
    pub const fn default_for(mode: Mode) -> Self {
        const HOUR_MS: u64 = 60 * 60 * 1000;
        Self {
            mode,
            cap: 5,
            first_delay_ms: 5_000,
            max_delay_ms: 600_000,
            window_ms: 24 * HOUR_MS,
            start_within_ms: 24 * HOUR_MS,
            lease_ms: 60_000,
        }
    }

    /// Checks every number's range: cap 1 to [`MAX_CAP`], durations 1 ms to [`MAX_DURATION_MS`].
    pub fn check(&self) -> Result<(), PolicyError> {
        let fields = [
            ("cap", u64::from(self.cap), u64::from(MAX_CAP)),
            ("first_delay_ms", self.first_delay_ms, MAX_DURATION_MS),
            ("max_delay_ms", self.max_delay_ms, MAX_DURATION_MS),
            ("window_ms", self.window_ms, MAX_DURATION_MS),
            ("start_within_ms", self.start_within_ms, MAX_DURATION_MS),
            ("lease_ms", self.lease_ms, MAX_DURATION_MS),
        ];
        for (field, value, max) in fields {
            if value < 1 || value > max {
                return Err(PolicyError {
                    field,
                    value,
                    min: 1,
                    max,
                });
            }
        }
        Ok(())
    }

    /// How long to wait after `failed`, the `starts`-th start since the last redrive or the charge.
    #[must_use]
    pub fn delay(&self, job: &JobId, failed: Attempt, starts: u32) -> Duration {
        let doublings = starts.saturating_sub(1).min(63);
        let base_ms = self
            .first_delay_ms
            .saturating_mul(1 << doublings)
            .min(self.max_delay_ms);
        // A fifth of the base, times a hash in [0, 1) of 32 bits.
        let spread = u128::from(base_ms)
            .saturating_mul(u128::from(jitter(job, failed)))
            .checked_div(5 << 32)
            .and_then(|ms| u64::try_from(ms).ok())
            .unwrap_or(0);
        Duration::from_millis(base_ms.saturating_add(spread))
    }
}

/// A hash of job and attempt: 32 bits.
fn jitter(job: &JobId, attempt: Attempt) -> u32 {
    const SCOPE: uuid::Uuid = uuid::uuid!("0f0c1f6e-3b1c-5d4e-9a52-7d0a8f6b8e01");
    let hash = derive(
        SCOPE,
        &[job.as_str().as_bytes(), &attempt.get().to_le_bytes()],
    );
    let (high, _) = hash.as_u64_pair();
    u32::try_from(high >> 32).expect("a 64-bit number shifted by 32 has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_their_cap_and_spread_by_a_fifth() {
        let policy = Policy::default_for(Mode::Claimed);
        let job = JobId::new("j").expect("valid");
        // (starts since base, delay without jitter)
        for (starts, base_ms) in [
            (1, 5_000),
            (2, 10_000),
            (3, 20_000),
            (7, 320_000),
            (8, 600_000),
            (64, 600_000),
            (u32::MAX, 600_000),
        ] {
            let delay = policy.delay(&job, Attempt::new(starts), starts);
            assert!(
                delay >= Duration::from_millis(base_ms),
                "{starts}: {delay:?}"
            );
            assert!(
                delay < Duration::from_millis(base_ms + base_ms / 5),
                "{starts}: {delay:?}"
            );
        }
    }

    #[test]
    fn jobs_that_stalled_together_come_back_apart() {
        let policy = Policy::default_for(Mode::Claimed);
        let delays: std::collections::BTreeSet<_> = (0..100)
            .map(|n| {
                policy.delay(
                    &JobId::new(format!("job-{n}")).expect("valid"),
                    Attempt::FIRST,
                    1,
                )
            })
            .collect();
        assert!(
            delays.len() > 80,
            "{} different delays of 100",
            delays.len()
        );
        let again = policy.delay(&JobId::new("job-7").expect("valid"), Attempt::FIRST, 1);
        assert!(
            delays.contains(&again),
            "the same job and attempt give the same delay"
        );
    }

    #[test]
    fn a_lease_has_the_range_of_a_policys() {
        assert_eq!(
            Lease::from_ms(MAX_DURATION_MS).map(Lease::ms),
            Ok(MAX_DURATION_MS)
        );
        for ms in [0, MAX_DURATION_MS + 1, u64::MAX] {
            assert_eq!(Lease::from_ms(ms).expect_err("refused").value, ms);
        }
        assert!(Lease::try_from(Duration::from_micros(999)).is_err());
        assert!(Lease::try_from(Duration::MAX).is_err());
    }

    #[test]
    fn a_policy_outside_its_range_names_the_field() {
        let mut policy = Policy::default_for(Mode::Claimed);
        assert_eq!(policy.check(), Ok(()));
        policy.cap = 0;
        assert_eq!(policy.check().expect_err("refused").field, "cap");
        policy.cap = 5;
        policy.lease_ms = u64::MAX;
        assert_eq!(policy.check().expect_err("refused").field, "lease_ms");
    }
}
