//! The three days: signals of a plan, sent to a ledger from several tasks at once.
//!
//! Time stands still while the steps of one second are sent, then the next second that has any comes (see [`Pace`]). Signals are
//! shuffled and dealt to [`WORKERS`] tasks, so that copies of one signal come from different ones. Charges go before other signals
//! of their second and keep their order within an account: which of two charges the last credit goes to is then the same in every
//! run, and so are all totals. Copies of one charge race each other.
//!
//! What a task hears back goes to the [`Expectation`] and to a tally; nothing that is shown later comes from here but that tally, since
//! a ledger stores no rejections. Projections catch up once in a simulated hour, in a task of their own, beside the signals.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use recoup::{
    Command, CommandId, Grant, GrantId, JobId, Ledger, LedgerError, Limit, Outcome, Rejection,
};
use recoup_projections::Projections;
use serde::Serialize;
use tokio::task::{JoinHandle, JoinSet};

use super::expect::Expectation;
use super::pace::Pace;
use super::plan::{Act, HOUR_S, JobPlan, Plan, Step};
use super::random::SplitMix64;
use super::signals::{Signal, Signals, Verb};

/// How many tasks send at once.
pub(super) const WORKERS: usize = 8;

/// A random stream of the seed: the order of signals within a second.
const ORDER: u64 = 2;

/// How the commands of one verb were answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) applied: u64,
    pub(super) already_applied: u64,
    pub(super) noted: u64,
    /// By code.
    pub(super) rejected: BTreeMap<&'static str, u64>,
}

/// A rejection, for an example of each kind of limit.
#[derive(Debug, Clone)]
pub(super) struct Refused {
    pub(super) job: JobId,
    pub(super) account: recoup::AccountId,
    pub(super) rejection: Rejection,
}

/// What the days left behind outside the ledger.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) expectation: Expectation,
    pub(super) tallies: BTreeMap<Verb, Tally>,
    /// The first rejection of each code that limits give.
    pub(super) refused: BTreeMap<&'static str, Refused>,
}

type Answer = (usize, Act, Result<Outcome, LedgerError>);

/// Lives through the plan.
pub(super) struct Drive<'a> {
    pub(super) ledger: Ledger,
    pub(super) projections: Projections,
    pub(super) pace: Pace,
    pub(super) plan: &'a Plan,
    pub(super) seed: u64,
    driven: Driven,
    catching_up: Option<JoinHandle<anyhow::Result<()>>>,
}

impl<'a> Drive<'a> {
    pub(super) fn new(
        ledger: Ledger,
        projections: Projections,
        pace: Pace,
        (plan, seed): (&'a Plan, u64),
    ) -> Self {
        let driven = Driven {
            expectation: Expectation::of(plan),
            tallies: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        Self {
            ledger,
            projections,
            pace,
            plan,
            seed,
            driven,
            catching_up: None,
        }
    }

    /// Sends everything, second by second, to the end of the last day.
    pub(super) async fn run(mut self, end_s: u32) -> anyhow::Result<Driven> {
        let bar = progress(self.plan);
        let mut grants = self.grants();
        let mut hour = 0;
        self.set_limits().await?;
        for (at_s, steps) in &self.plan.steps {
            while let Some(due) = grants.first_entry().filter(|due| due.key() <= at_s) {
                let (granted_s, due) = due.remove_entry();
                self.pace.move_to(granted_s).await;
                self.give(due).await?;
            }
            self.pace.move_to(*at_s).await;
            let (charges, signals): (Vec<Step>, Vec<Step>) =
                steps.iter().partition(|step| step.act == Act::Charge);
            self.charge(&charges).await?;
            self.signal(*at_s, &signals).await?;
            bar.inc(charges.len() as u64);
            if at_s / HOUR_S > hour {
                hour = at_s / HOUR_S;
                bar.set_message(format!("day {} {:02}:00", hour / 24 + 1, hour % 24));
                self.project().await?;
            }
        }
        self.pace.move_to(end_s).await;
        self.settle_projections().await?;
        self.projections.catch_up().await?;
        bar.finish_and_clear();
        Ok(self.driven)
    }

    fn signals(&self) -> Signals<'_> {
        Signals {
            ledger: &self.ledger,
            plan: self.plan,
        }
    }

    /// Lets the projections catch up beside the next signals; waits for the last time first.
    async fn project(&mut self) -> anyhow::Result<()> {
        self.settle_projections().await?;
        let projections = self.projections.clone();
        self.catching_up = Some(tokio::spawn(async move {
            projections.catch_up().await?;
            Ok(())
        }));
        Ok(())
    }

    async fn settle_projections(&mut self) -> anyhow::Result<()> {
        match self.catching_up.take() {
            Some(task) => task.await.context("the projections' task died")?,
            None => Ok(()),
        }
    }

    /// Grants by second: (account, command).
    fn grants(&self) -> BTreeMap<u32, Vec<(usize, Grant)>> {
        let mut grants: BTreeMap<u32, Vec<(usize, Grant)>> = BTreeMap::new();
        for (index, account) in self.plan.accounts.iter().enumerate() {
            for grant in &account.grants {
                let name = GrantId::new(grant.name).expect("a literal is a valid id");
                let command = Grant {
                    account: account.id.clone(),
                    grant: name,
                    amount: grant.amount,
                };
                grants.entry(grant.at_s).or_default().push((index, command));
            }
        }
        grants
    }

    async fn give(&mut self, grants: Vec<(usize, Grant)>) -> anyhow::Result<()> {
        let command = |(_, grant): &(usize, Grant)| {
            let id = CommandId::new(format!("grant.{}.{}", grant.account, grant.grant));
            Ok((id?, Command::Grant(grant.clone())))
        };
        let commands = grants.iter().map(command).collect::<anyhow::Result<_>>()?;
        for ((account, grant), answer) in grants.iter().zip(self.ledger.batch(commands).await) {
            match answer? {
                Outcome::Applied(_) => self
                    .driven
                    .expectation
                    .note_grant(*account, grant.amount.get()),
                other => bail!(
                    "the grant of {} was answered: {}",
                    grant.account,
                    other.name()
                ),
            }
        }
        Ok(())
    }

    async fn set_limits(&self) -> anyhow::Result<()> {
        let capped = self
            .plan
            .accounts
            .iter()
            .filter(|account| account.monthly_cap.is_some());
        let commands = capped.map(|account| {
            let id = CommandId::new(format!("limit.{}", account.id))?;
            let monthly_cap = Some(account.monthly_cap);
            let limit = Limit {
                account: account.id.clone(),
                floor: None,
                monthly_cap,
            };
            Ok((id, Command::Limit(limit)))
        });
        for answer in self
            .ledger
            .batch(commands.collect::<anyhow::Result<_>>()?)
            .await
        {
            let outcome = answer?;
            if !outcome.is_done() {
                bail!("a limit was answered: {}", outcome.name());
            }
        }
        Ok(())
    }

    /// Charges of one instant: in order within an account, at once across accounts; copies of one charge at once.
    async fn charge(&mut self, steps: &[Step]) -> anyhow::Result<()> {
        let mut lanes: BTreeMap<usize, Vec<Vec<Signal>>> = BTreeMap::new();
        for step in steps {
            let lane = self.plan.jobs[step.job].account % WORKERS;
            lanes
                .entry(lane)
                .or_default()
                .push(self.signals().of(*step)?);
        }
        let mut tasks = JoinSet::new();
        for volleys in lanes.into_values() {
            let ledger = self.ledger.clone();
            tasks.spawn(async move {
                let mut answers = Vec::new();
                for volley in volleys {
                    answers.extend(at_once(&ledger, volley).await?);
                }
                Ok(answers)
            });
        }
        self.collect(tasks).await
    }

    /// Every other signal of one instant, shuffled and dealt.
    async fn signal(&mut self, at_s: u32, steps: &[Step]) -> anyhow::Result<()> {
        let mut sends = Vec::new();
        for step in steps {
            if self
                .driven
                .expectation
                .is_sent(step.job, &self.plan.jobs[step.job], step.act)
            {
                sends.extend(self.signals().of(*step)?);
            }
        }
        SplitMix64::of(self.seed, &[ORDER, u64::from(at_s)]).shuffle(&mut sends);
        let mut lanes: Vec<Vec<Signal>> = Vec::new();
        lanes.resize_with(WORKERS.min(sends.len()), Vec::new);
        let count = lanes.len();
        for (index, send) in sends.into_iter().enumerate() {
            lanes[index % count].push(send);
        }
        let mut tasks = JoinSet::new();
        for lane in lanes {
            let ledger = self.ledger.clone();
            tasks.spawn(async move {
                let mut answers = Vec::with_capacity(lane.len());
                for send in lane {
                    answers.push(one(&ledger, send).await);
                }
                Ok(answers)
            });
        }
        self.collect(tasks).await
    }

    async fn collect(
        &mut self,
        mut tasks: JoinSet<anyhow::Result<Vec<Answer>>>,
    ) -> anyhow::Result<()> {
        while let Some(answers) = tasks.join_next().await {
            for (job, act, answer) in answers.context("a worker died")?? {
                let plan = &self.plan.jobs[job];
                let outcome =
                    answer.with_context(|| format!("{} of {}", act.verb().name(), plan.id))?;
                self.driven.note(job, act, &outcome, self.plan);
            }
        }
        Ok(())
    }
}

impl Driven {
    fn note(&mut self, job: usize, act: Act, outcome: &Outcome, plan: &Plan) {
        let tally = self.tallies.entry(act.verb()).or_default();
        tally.sent += 1;
        match outcome {
            Outcome::Applied(_) => tally.applied += 1,
            Outcome::AlreadyApplied(_) => tally.already_applied += 1,
            Outcome::Noted(_) => tally.noted += 1,
            Outcome::Rejected { rejection, .. } => {
                *tally.rejected.entry(rejection.code()).or_default() += 1;
                self.note_refusal(&plan.jobs[job], rejection, plan);
            }
        }
        self.expectation.note(job, act, outcome);
    }

    fn note_refusal(&mut self, job: &JobPlan, rejection: &Rejection, plan: &Plan) {
        if matches!(
            rejection,
            Rejection::InsufficientCredit { .. } | Rejection::CapExceeded { .. }
        ) {
            self.refused
                .entry(rejection.code())
                .or_insert_with(|| Refused {
                    job: job.id.clone(),
                    account: plan.accounts[job.account].id.clone(),
                    rejection: rejection.clone(),
                });
        }
    }
}

async fn one(ledger: &Ledger, send: Signal) -> Answer {
    (
        send.job,
        send.act,
        ledger.job(send.id, send.name, send.command).await,
    )
}

/// Sends copies of one signal, each from a task of its own.
async fn at_once(ledger: &Ledger, sends: Vec<Signal>) -> anyhow::Result<Vec<Answer>> {
    let mut tasks = JoinSet::new();
    let mut answers = Vec::with_capacity(sends.len());
    let mut sends = sends.into_iter();
    let Some(first) = sends.next() else {
        return Ok(answers);
    };
    for send in sends {
        let ledger = ledger.clone();
        tasks.spawn(async move { one(&ledger, send).await });
    }
    answers.push(one(ledger, first).await);
    while let Some(answer) = tasks.join_next().await {
        answers.push(answer.map_err(|died| anyhow!("a worker died: {died}"))?);
    }
    Ok(answers)
}

/// On a terminal's stderr; hidden elsewhere.
fn progress(plan: &Plan) -> ProgressBar {
    let template = "{msg:>13} {bar:40} {human_pos} of {human_len} requests";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(plan.jobs.len() as u64)
        .with_style(style)
        .with_message("day 1 00:00")
}
