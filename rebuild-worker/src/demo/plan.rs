//! What happens in the three simulated days, decided before the first of them begins. Pure: a trace and a seed give one plan.
//!
//! Every request is a job that is charged at its minute. The trace knows no accounts and no failures, so both are made up here: the
//! account by a fixed hash of the row, heavy-tailed; the faults by seeded draws, one generator a job, so that the faults of one row
//! do not depend on the others (see [`faults`](super::faults)). A plan is a list of [`Step`]s by second. All steps of one second
//! are sent at once, from several tasks; the steps of one job stand at different seconds, except where a failure and a success
//! are made to race.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, ensure};
use recoup::{
    AccountId, Cost, JobId, Kind, Mode, Policy, PriceLine, PriceListId, PriceSnapshot, Rounding,
    Unit,
};

use super::faults::Life;
use super::random::SplitMix64;
use super::trace::{Request, Trace};

pub(super) const MINUTE_S: u32 = 60;
pub(super) const HOUR_S: u32 = 60 * MINUTE_S;
pub(super) const DAY_S: u32 = 24 * HOUR_S;

/// How long the simulation is.
pub(super) const DAYS: u32 = 3;

/// When its clock stops. What would happen later does not happen.
pub(super) const END_S: u32 = DAYS * DAY_S;

/// The trace is stretched over this: two midnights lie in it.
pub(super) const ARRIVALS_S: Range<u32> = 6 * HOUR_S..END_S - 10 * MINUTE_S;

/// When the half of the accounts that ran dry is given more.
const TOP_UP_S: u32 = DAY_S + 12 * HOUR_S;

/// How many accounts there can be; the k-th gets a share of the jobs that goes with 1/k.
pub(super) const ACCOUNTS: u32 = 200;

// Prices in the smallest unit, per 1,000 tokens: 0.30 and 1.20 credits at scale 2.
const INPUT_PRICE: i64 = 30;
const OUTPUT_PRICE: i64 = 120;
const PER_TOKENS: i64 = 1_000;

/// One in so many requests is batch work, whose attempts are started through the ledger.
const BATCH_EVERY: u64 = 8;

/// A random stream of the seed, for each of its uses.
const FAULTS: u64 = 1;

/// What an account is given, and what limits it.
#[derive(Debug, Clone)]
pub(super) struct AccountPlan {
    pub(super) id: AccountId,
    pub(super) grants: Vec<GrantPlan>,
    pub(super) monthly_cap: Option<i64>,
}

/// A grant at a second of the simulation.
#[derive(Debug, Clone)]
pub(super) struct GrantPlan {
    pub(super) at_s: u32,
    pub(super) name: &'static str,
    pub(super) amount: Cost,
}

/// A job.
#[derive(Debug, Clone)]
pub(super) struct JobPlan {
    pub(super) id: JobId,
    /// Index into the plan's accounts.
    pub(super) account: usize,
    pub(super) kind: WorkKind,
    pub(super) cost: Cost,
    pub(super) price: PriceSnapshot,
    /// Whether its failure and its success are sent at the same instant.
    pub(super) is_race: bool,
}

/// The two kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    /// The service runs it by itself.
    Completion,
    /// Workers start its attempts through the ledger.
    Batch,
}

impl WorkKind {
    pub(super) fn kind(self) -> Kind {
        let name = match self {
            Self::Completion => "code.complete",
            Self::Batch => "code.batch",
        };
        Kind::new(name).expect("a literal is a valid id")
    }

    /// Whether its attempts are started through the ledger.
    pub(super) const fn is_started(self) -> bool {
        matches!(self, Self::Batch)
    }

    /// Completions give up on a start after 6 h; batch work has three attempts, half an hour and then an hour apart.
    pub(super) const fn policy(self) -> Policy {
        let start_within_ms = 6 * 3_600_000;
        match self {
            Self::Completion => Policy {
                start_within_ms,
                ..Policy::default_for(Mode::External)
            },
            Self::Batch => Policy {
                cap: 3,
                first_delay_ms: 1_800_000,
                max_delay_ms: 3_600_000,
                ..Policy::default_for(Mode::Claimed)
            },
        }
    }
}

/// What a step asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Act {
    Charge,
    Start {
        attempt: u32,
    },
    /// The caller's patience ran out.
    TimeOut {
        attempt: u32,
    },
    /// The request itself is refused: no attempt will succeed.
    Refuse,
    Succeed {
        attempt: u32,
    },
    Cancel,
    Redrive,
    Discard,
    /// The due loop sees that nobody started the job in time.
    Expire,
}

/// A signal of one job, and how often it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Index into the plan's jobs.
    pub(super) job: usize,
    pub(super) act: Act,
    /// Which command id the first of them has: the same step later with the same number is a redelivery.
    pub(super) variant: u8,
    /// How many more are sent at once under that command id.
    pub(super) repeats: u8,
    /// How many more are sent at once, each under a command id of its own.
    pub(super) others: u8,
}

/// Everything that will be sent.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) accounts: Vec<AccountPlan>,
    pub(super) jobs: Vec<JobPlan>,
    /// By second of the simulation.
    pub(super) steps: BTreeMap<u32, Vec<Step>>,
    /// Requests of no token: they would cost nothing, and a job without a price is not charged.
    pub(super) free_requests: usize,
}

impl Plan {
    pub(super) fn of(trace: &Trace, seed: u64) -> anyhow::Result<Self> {
        let mut drafting = Drafting::begin(trace, seed);
        for (row, request) in trace.requests.iter().enumerate() {
            drafting.add(row, request)?;
        }
        ensure!(
            !drafting.plan.jobs.is_empty(),
            "no request of the trace has a token to charge for"
        );
        drafting.fund()?;
        Ok(drafting.plan)
    }
}

/// A plan that is being made.
struct Drafting<'a> {
    trace: &'a Trace,
    seed: u64,
    plan: Plan,
    /// Upper bounds of the accounts' shares, in 2^32nds.
    ranks: Vec<u64>,
    /// What the jobs of each account come to: in all, and before the last day, which begins a month.
    demand: Vec<(i64, i64)>,
}

impl<'a> Drafting<'a> {
    fn begin(trace: &'a Trace, seed: u64) -> Self {
        let accounts = (1..=ACCOUNTS).map(|number| AccountPlan {
            id: AccountId::new(format!("acct-{number:03}")).expect("letters and digits are an id"),
            grants: Vec::new(),
            monthly_cap: None,
        });
        let plan = Plan {
            accounts: accounts.collect(),
            jobs: Vec::with_capacity(trace.requests.len()),
            steps: BTreeMap::new(),
            free_requests: 0,
        };
        let demand = vec![(0, 0); plan.accounts.len()];
        Self {
            trace,
            seed,
            plan,
            ranks: zipf(u64::from(ACCOUNTS)),
            demand,
        }
    }

    fn add(&mut self, row: usize, request: &Request) -> anyhow::Result<()> {
        if request.context == 0 && request.generated == 0 {
            self.plan.free_requests += 1;
            return Ok(());
        }
        let price = price_of(request)?;
        let cost = price.cost().context("a request's tokens have a price")?;
        let of_row = &[
            request.at_ns.cast_unsigned(),
            request.context,
            request.generated,
        ];
        let mut hash = SplitMix64::of(0, of_row);
        let draw = hash.below(1 << 32);
        let account = self.ranks.partition_point(|bound| *bound <= draw);
        let kind = if hash.below(BATCH_EVERY) == 0 {
            WorkKind::Batch
        } else {
            WorkKind::Completion
        };
        let at_s = self.arrival_s(request);
        let demand = &mut self.demand[account];
        demand.0 += cost.get();
        demand.1 += if at_s < (DAYS - 1) * DAY_S {
            cost.get()
        } else {
            0
        };
        let id = JobId::new(format!("req-{:05}", row + 1))?;
        let job = self.plan.jobs.len();
        self.plan.jobs.push(JobPlan {
            id,
            account,
            kind,
            cost,
            price,
            is_race: false,
        });
        let random = SplitMix64::of(self.seed, &[FAULTS, row as u64]);
        Life {
            plan: &mut self.plan,
            job,
            random,
            rows: self.trace.requests.len(),
        }
        .live(at_s);
        Ok(())
    }

    /// The request's place in the simulated days, to the whole minute: what arrives in one minute arrives at once.
    fn arrival_s(&self, request: &Request) -> u32 {
        let first = self.trace.requests.first().map_or(0, |first| first.at_ns);
        let span = i128::from(self.trace.span_ns()).max(1);
        let since = i128::from(request.at_ns.saturating_sub(first));
        let window = i128::from(ARRIVALS_S.end - ARRIVALS_S.start);
        let offset = u32::try_from(since * window / span)
            .expect("a part of the window fits as the window does");
        (ARRIVALS_S.start + offset) / MINUTE_S * MINUTE_S
    }

    /// Grants and caps: most accounts have enough, one in nine runs dry, half of those are given more, one in eleven has a cap.
    fn fund(&mut self) -> anyhow::Result<()> {
        for (rank, ((all, month), account)) in
            self.demand.iter().zip(&mut self.plan.accounts).enumerate()
        {
            if *all == 0 {
                continue;
            }
            let is_dry = rank % 9 == 4;
            let welcome = whole_credits(if is_dry { *all * 9 / 20 } else { *all * 6 / 5 });
            account.grants.push(GrantPlan {
                at_s: 0,
                name: "welcome",
                amount: Cost::new(welcome)?,
            });
            if is_dry && rank % 2 == 0 {
                let amount = Cost::new(whole_credits(*all * 3 / 10))?;
                account.grants.push(GrantPlan {
                    at_s: TOP_UP_S,
                    name: "top-up",
                    amount,
                });
            }
            if rank % 11 == 2 {
                account.monthly_cap = Some(whole_credits(*month * 3 / 5));
            }
        }
        Ok(())
    }
}

/// Rounded up to whole credits of scale 2, at least one.
fn whole_credits(amount: i64) -> i64 {
    (amount / 100 + 1) * 100
}

/// Upper bounds of the shares of `count` ranks, in 2^32nds, where rank k weighs 1/k.
fn zipf(count: u64) -> Vec<u64> {
    let weight = |rank: u64| (1_u64 << 32) / rank;
    let total: u64 = (1..=count).map(weight).sum();
    let mut sum = 0;
    let bounds = (1..=count).map(|rank| {
        sum += weight(rank);
        let bound = (u128::from(sum) << 32) / u128::from(total);
        u64::try_from(bound).expect("a share of 2^32 is at most that")
    });
    bounds.collect()
}

fn price_of(request: &Request) -> anyhow::Result<PriceSnapshot> {
    let line = |unit: &str, tokens: u64, unit_price: i64| {
        Ok::<_, anyhow::Error>(PriceLine {
            unit: Unit::new(unit)?,
            quantity: i64::try_from(tokens)?,
            unit_price,
            per: PER_TOKENS,
        })
    };
    Ok(PriceSnapshot {
        list: PriceListId::new("demo-2023-11")?,
        rounding: Rounding::Up,
        lines: vec![
            line("input_tokens", request.context, INPUT_PRICE)?,
            line("output_tokens", request.generated, OUTPUT_PRICE)?,
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::super::SEED;
    use super::*;

    fn plan(rows: usize, seed: u64) -> Plan {
        Plan::of(&Trace::generate(rows, SEED), seed).expect("a generated trace can be planned")
    }

    #[test]
    fn a_seed_gives_one_plan() {
        let (one, same, other) = (plan(400, 7), plan(400, 7), plan(400, 8));
        assert_eq!(one.steps, same.steps);
        assert_ne!(one.steps, other.steps);
        let accounts = |plan: &Plan| plan.jobs.iter().map(|job| job.account).collect::<Vec<_>>();
        assert_eq!(
            accounts(&one),
            accounts(&other),
            "accounts are a hash of the row, not of the seed"
        );
    }

    #[test]
    fn jobs_spread_over_two_midnights_and_a_heavy_tail_of_accounts() {
        let plan = plan(4_000, SEED);
        let charged_s = |day: u32| {
            let charges = plan
                .steps
                .range(day * DAY_S..(day + 1) * DAY_S)
                .flat_map(|(_, steps)| steps);
            charges.filter(|step| step.act == Act::Charge).count()
        };
        assert!((0..DAYS).all(|day| charged_s(day) > 0));
        let mut jobs = vec![0_usize; ACCOUNTS as usize];
        for job in &plan.jobs {
            jobs[job.account] += 1;
        }
        // The first of 200 ranks of weight 1/k has 17 % of all.
        assert!((500..900).contains(&jobs[0]), "{}", jobs[0]);
        assert!(jobs.iter().filter(|jobs| **jobs > 0).count() > 150);
    }

    #[test]
    fn requests_of_no_token_are_no_jobs() {
        let mut trace = Trace::generate(3, SEED);
        trace.requests[1].context = 0;
        trace.requests[1].generated = 0;
        let plan = Plan::of(&trace, SEED).expect("two requests have tokens");
        assert_eq!((plan.jobs.len(), plan.free_requests), (2, 1));
        trace
            .requests
            .iter_mut()
            .for_each(|row| (row.context, row.generated) = (0, 0));
        assert!(Plan::of(&trace, SEED).is_err());
    }
}
