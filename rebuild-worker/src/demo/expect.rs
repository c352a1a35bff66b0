//! What the ledger should show, by the demo's own reckoning: a map of what was acknowledged.
//!
//! It knows only which grants and charges were accepted, whose failure, and whose success; it shares no code with the ledger's fold. Per
//! job: charged at most once, refunded at most once, and taken back if it was delivered. The rules do not depend on the order of the
//! answers: of two signals that raced, either may be heard of first.

use std::collections::BTreeMap;

use recoup::{AccountId, Outcome};
use serde::Serialize;

use super::plan::{Act, JobPlan, Plan};

/// What is known of one job.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    charged: bool,
    refunded: bool,
    delivered: bool,
    /// Whether it may still run, as the last answer said.
    live: bool,
    /// The highest attempt whose start was acknowledged.
    started: u32,
}

/// What was acknowledged so far.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    granted: BTreeMap<usize, i64>,
    jobs: Vec<Known>,
}

/// An account's figures, in the smallest unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Figures {
    pub(super) balance: i64,
    pub(super) held: i64,
}

/// Jobs and their entries, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct JobCounts {
    pub(super) charges: u64,
    pub(super) refunds: u64,
    pub(super) reclaims: u64,
    /// Jobs that were charged and whose result was handed over.
    pub(super) delivered: u64,
    /// Jobs that were charged, and gave no result so far.
    pub(super) not_delivered: u64,
}

/// The expectation in the terms of the ledger.
#[derive(Debug, Default)]
pub(super) struct Expected {
    pub(super) accounts: BTreeMap<AccountId, Figures>,
    pub(super) jobs: JobCounts,
}

impl Expectation {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            granted: BTreeMap::new(),
            jobs: vec![Known::default(); plan.jobs.len()],
        }
    }

    pub(super) fn note_grant(&mut self, account: usize, amount: i64) {
        *self.granted.entry(account).or_default() += amount;
    }

    /// Whether a signal of the job would be sent at all: only a job that was taken on is run, only an attempt that was given is reported.
    pub(super) fn is_sent(&self, job: usize, plan: &JobPlan, act: Act) -> bool {
        let known = &self.jobs[job];
        let attempt = match act {
            Act::Charge => return true,
            Act::TimeOut { attempt } | Act::Succeed { attempt } => attempt,
            Act::Start { .. }
            | Act::Refuse
            | Act::Cancel
            | Act::Redrive
            | Act::Discard
            | Act::Expire => 0,
        };
        known.charged && (!plan.kind.is_started() || attempt <= known.started)
    }

    pub(super) fn note(&mut self, job: usize, act: Act, outcome: &Outcome) {
        let known = &mut self.jobs[job];
        if !outcome.is_done() {
            return;
        }
        let is_new = matches!(outcome, Outcome::Applied(_));
        match act {
            Act::Charge => known.charged = true,
            Act::Start { attempt } => known.started = known.started.max(attempt),
            Act::Succeed { .. } => known.delivered = true,
            Act::TimeOut { .. } | Act::Refuse | Act::Cancel | Act::Expire => {
                known.refunded |= is_new
            }
            Act::Redrive | Act::Discard => {}
        }
        if let Some(receipt) = outcome.receipt().and_then(|receipt| receipt.job.as_ref()) {
            known.live = matches!(receipt.state, "queued" | "running" | "retry_scheduled");
        }
    }

    /// Whether the job was taken on.
    pub(super) fn is_charged(&self, job: usize) -> bool {
        self.jobs[job].charged
    }

    pub(super) fn expected(&self, plan: &Plan) -> Expected {
        let mut expected = Expected::default();
        let mut figures: Vec<Figures> = vec![Figures::default(); plan.accounts.len()];
        for (account, amount) in &self.granted {
            figures[*account].balance += amount;
        }
        for (known, job) in self
            .jobs
            .iter()
            .zip(&plan.jobs)
            .filter(|(known, _)| known.charged)
        {
            let account = &mut figures[job.account];
            let is_taken_back = known.refunded && known.delivered;
            expected.jobs.charges += 1;
            expected.jobs.refunds += u64::from(known.refunded);
            expected.jobs.reclaims += u64::from(is_taken_back);
            expected.jobs.delivered += u64::from(known.delivered);
            expected.jobs.not_delivered += u64::from(!known.delivered);
            if known.delivered || !known.refunded {
                account.balance -= job.cost.get();
            } else if known.live {
                account.held += job.cost.get();
            }
        }
        let named = plan
            .accounts
            .iter()
            .map(|account| account.id.clone())
            .zip(figures);
        expected.accounts = named
            .filter(|(_, figures)| *figures != Figures::default())
            .collect();
        expected
    }
}
