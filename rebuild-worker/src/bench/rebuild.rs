//! Rebuild: how fast it folds and compares beside a bare scan of the log, and what a repair costs the appends beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use recoup::ids::CommandId;
use recoup::{
    Command, Cost, EventStore, Floor, JobCommand, JobId, Kind, Limit, PriceSnapshot, values,
};
use recoup_projections::Projections;

use super::load::{self, Load, Measured, Shape};
use super::report::{Report, Row};
use super::{Bench, Size, raw};
use crate::rebuild::{Control, Mode, Origin, Request, Window, rebuild};

/// How much.
#[derive(Debug, clap::Args)]
pub struct RebuildSize {
    #[command(flatten)]
    size: Size,
    /// Distinct rows of daily usage in the window, each with one job.
    #[arg(long, default_value_t = 20_000)]
    keys: u32,
}

impl RebuildSize {
    pub(super) const fn size(&mut self) -> &mut Size {
        &mut self.size
    }
}

/// Accounts that share the keys.
const ACCOUNTS: u32 = 1_000;

/// Accounts whose rows are spoilt before each repair beside the load.
const SPOILT_ACCOUNTS: u32 = 20;

/// Runs with and without a repair, in turn.
const ROUNDS: u32 = 5;

/// The most lifecycles of such a run.
const ROUND_LIFECYCLES: u32 = 20_000;

pub(super) async fn measure(size: &RebuildSize) -> anyhow::Result<Report> {
    let bench = Bench::start(&size.size).await?;
    let load = Load {
        shape: Shape::Spread { accounts: 200 },
        lifecycles: size.size.lifecycles,
        callers: 64,
        first: 0,
    };
    load.fund(&bench.ledger).await?;
    load.run_batches(&bench.ledger).await?;
    charge_keys(&bench, size.keys).await?;
    let projections = Projections::open(bench.store.clone()).await?;
    projections.catch_up().await?;
    let mut report = Report::default();
    for (what, mode, window) in [
        ("verify, two days", Mode::Verify, Window::default()),
        ("verify, all days and accounts", Mode::Verify, Window::All),
        ("repair of 1 % of the rows", Mode::Repair, Window::default()),
    ] {
        if mode == Mode::Repair {
            spoil(&projections, 100).await?;
        }
        let scan = raw::scan(&bench.store).await?;
        let events = bench.store.head().await?.get();
        let begin = Instant::now();
        run(&projections, mode, window).await?;
        report.push(Row::events(what.to_owned(), events, begin.elapsed()).beside(&scan));
    }
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let lifecycles = load.lifecycles.min(ROUND_LIFECYCLES);
    for round in 0..ROUNDS {
        let first = load.lifecycles.saturating_add(2 * round * lifecycles);
        let quiet = Load {
            lifecycles,
            first,
            ..load
        };
        alone.push(quiet.run(&bench.ledger).await?);
        let disturbed = Load {
            first: first.saturating_add(lifecycles),
            ..quiet
        };
        beside.push(beside_repairs(&bench, disturbed).await?);
    }
    report.push(median("appends, 64 callers", alone)?);
    report.push(median("appends, 64 callers, beside repairs", beside)?);
    Ok(report)
}

async fn run(projections: &Projections, mode: Mode, window: Window) -> anyhow::Result<i64> {
    let request = Request {
        window,
        account: None,
        mode,
        origin: Origin::Operator,
    };
    let run = rebuild(projections, &request, &Control::default()).await?;
    Ok(run.rows_different)
}

/// The run whose p99 is the middle one.
fn median(what: &str, mut runs: Vec<Measured>) -> anyhow::Result<Row> {
    runs.sort_by_key(|run| run.latency.value_at_quantile(0.99));
    let middle = runs.get(runs.len() / 2).context("no run")?;
    Ok(Row::of(format!("{what}, median of {ROUNDS}"), middle))
}

/// One job for each key.
async fn charge_keys(bench: &Bench, keys: u32) -> anyhow::Result<()> {
    for number in 0..ACCOUNTS.min(keys) {
        let limit = Limit {
            account: account(number)?,
            floor: Some(Floor::None),
            monthly_cap: None,
        };
        let set = bench.ledger.limit(CommandId::random(), limit).await?;
        ensure!(set.is_done(), "no limit");
    }
    let cost = Cost::new(40)?;
    for from in (0..keys).step_by(load::BATCH as usize) {
        let to = keys.min(from.saturating_add(load::BATCH));
        let commands = (from..to).map(|number| {
            let kind = Kind::new(format!("kind-{}", number / ACCOUNTS))?;
            let account = account(number % ACCOUNTS)?;
            let price = PriceSnapshot::flat(cost);
            let charge = bench.ledger.charge_of(account, kind, cost, price, None)?;
            let job = JobId::new(format!("key-{number:09}"))?;
            let command = Command::Job(job, JobCommand::Charge(Box::new(charge)));
            Ok((CommandId::random(), command))
        });
        let commands: anyhow::Result<Vec<_>> = commands.collect();
        for answer in bench.ledger.batch(commands?).await {
            ensure!(answer?.is_done(), "a charge was refused");
        }
    }
    Ok(())
}

fn account(number: u32) -> anyhow::Result<recoup::AccountId> {
    Ok(recoup::AccountId::new(format!("key-account-{number}"))?)
}

/// Alters every so manieth row of daily usage.
async fn spoil(projections: &Projections, every: u32) -> anyhow::Result<()> {
    let spoilt = projections.database().write(move |tx| {
        let sql =
            "UPDATE daily_usage SET charged = charged * 12 / 5 + 1 WHERE last_position % ?1 = 0";
        tx.execute(sql, values![every])
    });
    spoilt.await?;
    Ok(())
}

/// Alters the rows of one account: a small write.
async fn spoil_account(projections: &Projections, number: u32) -> anyhow::Result<()> {
    let account = account(number)?.to_string();
    let spoilt = projections.database().write(move |tx| {
        let sql = "UPDATE daily_usage SET charged = charged + 1 WHERE account = ?1";
        tx.execute(sql, values![account])
    });
    spoilt.await?;
    Ok(())
}

/// The load, while rows are spoilt, a few at a time, and repaired on and on.
async fn beside_repairs(bench: &Bench, load: Load) -> anyhow::Result<Measured> {
    let projections = Projections::open(bench.store.clone()).await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let repairs = {
        let (projections, is_over) = (projections.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            let (mut repaired, mut round) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                for number in 0..SPOILT_ACCOUNTS {
                    spoil_account(&projections, (round + number) % ACCOUNTS).await?;
                }
                round += SPOILT_ACCOUNTS;
                repaired += run(&projections, Mode::Repair, Window::default()).await?;
            }
            Ok::<_, anyhow::Error>(repaired)
        })
    };
    let measured = load.run(&bench.ledger).await;
    is_over.store(true, Ordering::Relaxed);
    let repaired = repairs.await.context("the repair died")??;
    ensure!(repaired > 0, "nothing was repaired beside the load");
    measured
}
