//! The faults: what befalls a job, drawn from its own seeded generator. Pure.
//!
//! Nothing in here is real: the trace has no failures. Every draw is a share in ten-thousandths; in a short trace a fault is made more
//! frequent, so that it is seen at all (see [`share`]). Signals of one job stand at seconds of the minute of their own (charge :00, start
//! and cancel :05, success :10, patience over :30 or :35, late success :45, redelivery :50, timer :55), so that only a race shares one.

use super::plan::{Act, DAY_S, END_S, HOUR_S, MINUTE_S, Plan, Step, WorkKind};
use super::random::{SplitMix64, WHOLE};

/// From here on no batch attempt ends well: jobs whose retry waits are there to be seen when the clock stops.
const OUTAGE_S: u32 = END_S - 90 * MINUTE_S;

/// How long a caller waits for an answer before it reports a failure.
pub(super) const PATIENCE_S: u32 = 30;

/// How often a fault happens: `usual` ten-thousandths, or as often as gives `wanted` of them in `rows`, but not to more than one in seven.
fn share(usual: u32, wanted: u32, rows: usize) -> u32 {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX).max(1);
    let needed = wanted.saturating_mul(WHOLE) / rows;
    usual.max(needed.min(WHOLE / 7))
}

/// What can befall a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The caller gives up at 30 s; perhaps the work is done later all the same.
    TimedOut,
    /// Failure and success are sent at one instant.
    Race,
    /// The service died right after the charge: the timer ends it.
    Abandoned,
    /// The customer calls it off; one time in two the work is done all the same.
    CalledOff,
    /// A failure is reported after the delivery.
    FailedAfter,
    /// The request is refused for good.
    Refused,
}

/// (fault, usual share, how many of it a short trace should have)
const FAULTS_OF_COMPLETIONS: [(Fault, u32, u32); 6] = [
    (Fault::TimedOut, 420, 12),
    (Fault::Race, 20, 4),
    (Fault::Abandoned, 30, 3),
    (Fault::CalledOff, 30, 3),
    (Fault::FailedAfter, 15, 3),
    (Fault::Refused, 50, 2),
];

/// One job's life, being written into the plan.
pub(super) struct Life<'a> {
    pub(super) plan: &'a mut Plan,
    pub(super) job: usize,
    /// The job's own generator.
    pub(super) random: SplitMix64,
    /// How many requests the trace has.
    pub(super) rows: usize,
}

impl Life<'_> {
    /// Writes every step of the job, from its charge at `charged_s` on.
    pub(super) fn live(mut self, charged_s: u32) {
        self.send(charged_s, Act::Charge);
        match self.plan.jobs[self.job].kind {
            WorkKind::Completion => self.completion(charged_s),
            WorkKind::Batch => self.batch(charged_s),
        }
    }

    /// Sends a signal, one time in eight more than once: under one command id, or each under its own.
    fn send(&mut self, at_s: u32, act: Act) {
        let copies = u8::from(self.random.chance(WHOLE / 8)) * self.draw_copies();
        let is_redelivery = self.random.chance(WHOLE / 2);
        let (repeats, others) = if is_redelivery {
            (copies, 0)
        } else {
            (0, copies)
        };
        self.put(
            at_s,
            Step {
                job: self.job,
                act,
                variant: 0,
                repeats,
                others,
            },
        );
    }

    fn draw_copies(&mut self) -> u8 {
        u8::try_from(self.random.between(1, 3)).expect("1 to 3 fit a byte")
    }

    fn put(&mut self, at_s: u32, step: Step) {
        if at_s < END_S {
            self.plan.steps.entry(at_s).or_default().push(step);
        }
    }

    /// Sends a signal from several tasks, under the same command id and under others.
    fn send_from_all(&mut self, at_s: u32, act: Act) {
        let (repeats, others) = (self.draw_copies(), self.draw_copies());
        self.put(
            at_s,
            Step {
                job: self.job,
                act,
                variant: 0,
                repeats,
                others,
            },
        );
    }

    /// One time in thirty, a signal that was sent at `at_s` comes once more, up to six hours later, in whatever order.
    fn redeliver(&mut self, at_s: u32, act: Act) {
        if self.random.chance(WHOLE / 30) {
            let minutes = u32::try_from(self.random.between(1, 360)).unwrap_or(1);
            let again_s = at_s / MINUTE_S * MINUTE_S + minutes * MINUTE_S + 50;
            self.put(
                again_s,
                Step {
                    job: self.job,
                    act,
                    variant: 0,
                    repeats: 0,
                    others: 0,
                },
            );
        }
    }

    fn completion(&mut self, charged_s: u32) {
        let mut draw = u32::try_from(self.random.below(u64::from(WHOLE))).unwrap_or(0);
        let fault = FAULTS_OF_COMPLETIONS
            .into_iter()
            .find_map(|(fault, usual, wanted)| {
                let share = share(usual, wanted, self.rows);
                let is_it = draw < share;
                draw = draw.wrapping_sub(share);
                is_it.then_some(fault)
            });
        let success = Act::Succeed { attempt: 1 };
        let failure = Act::TimeOut { attempt: 1 };
        let gave_up_s = charged_s + PATIENCE_S;
        match fault {
            None => {
                self.send(charged_s + 10, success);
                self.redeliver(charged_s, success);
            }
            Some(Fault::TimedOut) => {
                self.send(gave_up_s, failure);
                self.redeliver(charged_s, failure);
                if self.random.chance(5_500) {
                    let done_s = self.late_s(charged_s);
                    self.send_from_all(done_s, success);
                }
            }
            Some(Fault::Race) => {
                self.plan.jobs[self.job].is_race = true;
                self.send_from_all(gave_up_s, failure);
                self.send_from_all(gave_up_s, success);
            }
            Some(Fault::Abandoned) => {
                let start_by_s = charged_s + 6 * HOUR_S;
                self.send(start_by_s + 55, Act::Expire);
                if self.random.chance(WHOLE / 3) {
                    self.send_from_all(start_by_s + HOUR_S + 45, success);
                }
            }
            Some(Fault::CalledOff) => {
                self.send(charged_s + 5, Act::Cancel);
                if self.random.chance(WHOLE / 2) {
                    self.send(charged_s + 10, success);
                }
            }
            Some(Fault::FailedAfter) => {
                self.send(charged_s + 10, success);
                let late = Step {
                    job: self.job,
                    act: failure,
                    variant: 9,
                    repeats: 1,
                    others: 0,
                };
                self.put(charged_s + 45, late);
            }
            Some(Fault::Refused) => self.send(charged_s + 10, Act::Refuse),
        }
    }

    /// When work that its caller gave up on is done: 32 s to 18 h after the charge, each doubling as likely as the next; one time in
    /// four in the night after, past midnight.
    fn late_s(&mut self, charged_s: u32) -> u32 {
        let to_minute = |at_s: u32| at_s / MINUTE_S * MINUTE_S + 45;
        if self.random.chance(WHOLE / 4) {
            let midnight_s = (charged_s / DAY_S + 1) * DAY_S;
            let after_s = self.random.between(5 * 60, 120 * 60);
            return to_minute(midnight_s + u32::try_from(after_s).unwrap_or(0));
        }
        let octave_s = 32_u64 << self.random.below(11);
        let delay_s = octave_s + self.random.below(octave_s);
        to_minute(charged_s + u32::try_from(delay_s).unwrap_or(0))
    }

    fn batch(&mut self, charged_s: u32) {
        let policy = WorkKind::Batch.policy();
        let mut start_s = charged_s + 5;
        for attempt in 1..=policy.cap {
            self.start(start_s, attempt);
            let usual = if attempt == 1 {
                share(1_000, 12, self.rows)
            } else {
                4_000
            };
            let is_down = start_s >= OUTAGE_S;
            if !(is_down || self.random.chance(usual)) {
                self.send(start_s + 5, Act::Succeed { attempt });
                self.redeliver(start_s, Act::Start { attempt });
                return;
            }
            let failed_s = start_s + PATIENCE_S;
            self.send(failed_s, Act::TimeOut { attempt });
            if attempt == policy.cap {
                return self.dead_letter(failed_s, attempt);
            }
            // The ledger adds up to a fifth, by a hash of job and attempt.
            let delay_ms =
                (policy.first_delay_ms << (attempt - 1)).min(policy.max_delay_ms) * 6 / 5;
            let due_s = failed_s + u32::try_from(delay_ms / 1_000).unwrap_or(0);
            let next_s = due_s / MINUTE_S * MINUTE_S + MINUTE_S + 5;
            if !is_down && self.random.chance(WHOLE / 4) {
                return self.recover_batch(failed_s, next_s, attempt);
            }
            start_s = next_s;
        }
    }

    /// A worker's start; now and then two workers want the same attempt, under command ids of their own.
    fn start(&mut self, at_s: u32, attempt: u32) {
        let others = u8::from(self.random.chance(WHOLE / 25));
        self.put(
            at_s,
            Step {
                job: self.job,
                act: Act::Start { attempt },
                variant: 0,
                repeats: 0,
                others,
            },
        );
    }

    /// The failed attempt was done after all: while its retry waits, or while the next one runs.
    fn recover_batch(&mut self, failed_s: u32, next_s: u32, attempt: u32) {
        if self.random.chance(WHOLE / 2) {
            self.send_from_all(failed_s + 10, Act::Succeed { attempt });
            return;
        }
        self.start(next_s, attempt + 1);
        self.send_from_all(next_s + 5, Act::Succeed { attempt });
        self.send(
            next_s + 15,
            Act::Succeed {
                attempt: attempt + 1,
            },
        );
    }

    /// Out of attempts. Of ten, a person redrives four and gives two up (whose work is then done all the same), two are done late.
    fn dead_letter(&mut self, failed_s: u32, attempt: u32) {
        let seen_s = (failed_s / MINUTE_S + 60) * MINUTE_S + 20;
        match self.random.below(10) {
            0..4 => {
                self.put(
                    seen_s,
                    Step {
                        job: self.job,
                        act: Act::Redrive,
                        variant: 0,
                        repeats: 1,
                        others: 0,
                    },
                );
                self.start(seen_s + 2 * MINUTE_S, attempt + 1);
                self.send(
                    seen_s + 2 * MINUTE_S + 5,
                    Act::Succeed {
                        attempt: attempt + 1,
                    },
                );
            }
            4..6 => {
                self.send(seen_s, Act::Discard);
                self.send_from_all(seen_s + HOUR_S, Act::Succeed { attempt });
            }
            6..8 => self.send_from_all(seen_s + 25, Act::Succeed { attempt }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::SEED;
    use super::super::trace::Trace;
    use super::*;

    fn plan(rows: usize) -> Plan {
        Plan::of(&Trace::generate(rows, SEED), SEED).expect("a generated trace can be planned")
    }

    #[test]
    fn a_job_is_charged_first_and_only_races_share_a_second() {
        let plan = plan(2_000);
        let mut seen: BTreeMap<usize, Vec<(u32, Act)>> = BTreeMap::new();
        for (at_s, steps) in &plan.steps {
            assert!(*at_s < END_S);
            for step in steps {
                seen.entry(step.job).or_default().push((*at_s, step.act));
            }
        }
        assert_eq!(seen.len(), plan.jobs.len());
        let mut races = 0;
        for steps in seen.values() {
            assert_eq!(steps[0].1, Act::Charge);
            let seconds: BTreeSet<u32> = steps.iter().map(|(at_s, _)| *at_s).collect();
            races += steps.len() - seconds.len();
        }
        let planned = plan.jobs.iter().filter(|job| job.is_race).count();
        assert!((1..=planned).contains(&races), "{races} of {planned}");
    }

    #[test]
    fn a_short_trace_has_faults_too() {
        let plan = plan(60);
        let has =
            |wanted: fn(&Act) -> bool| plan.steps.values().flatten().any(|step| wanted(&step.act));
        assert!(has(|act| matches!(act, Act::TimeOut { .. })));
        assert!(
            plan.accounts
                .iter()
                .any(|account| account.monthly_cap.is_some())
        );
        assert!(Plan::of(&Trace::generate(1, SEED), SEED).is_ok());
    }
}
