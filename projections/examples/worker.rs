//! A worker service over an embedded ledger: it charges jobs, claims them, works, and reports.
//!
//! ```sh
//! cargo run -p recoup-projections --example worker
//! ```
//!
//! Four jobs: two that work at once, one that fails once and then works, and one that kills its worker every time, which is played by saying
//! nothing more about it. Its lease runs out, it is retried, its attempts are used up, and it waits as a dead letter for a person. A service
//! runs the loop of `recoup up` beside its workers; here its one step, [`run_out`], is called in between.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use recoup::store::sqlite::{Options, SqliteStore};
use recoup::{
    AccountId, Claimed, CommandId, Cost, DueSource, FailureClass, Grant, GrantId, JobCommand,
    JobId, JobResult, Kind, Ledger, Mode, Policies, Policy, PriceSnapshot, Reason, WorkerId,
};
use recoup_projections::{DeadLetterFilter, Projections};

/// What came of the jobs: each one's last state, and the account's balance.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) states: BTreeMap<String, &'static str>,
    pub(crate) balance: i64,
    pub(crate) dead_letters: Vec<String>,
}

const JOBS: [&str; 4] = ["sound-1", "sound-2", "flaky", "cursed"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let summary = work_off(&folder.path().join("ledger.db")).await?;
    for (job, state) in &summary.states {
        println!("{job}: {state}");
    }
    println!("balance: {}", summary.balance);
    for letter in &summary.dead_letters {
        println!("waits for a person: {letter}");
    }
    Ok(())
}

/// Charges the jobs in a new ledger at `path`, and works until none of them is live.
pub(crate) async fn work_off(path: &Path) -> Result<Summary, Box<dyn Error>> {
    let kind = Kind::new("video.render")?;
    // Short, so that the example is over soon. The defaults are a minute, five seconds, and five attempts.
    let policy = Policy {
        cap: 2,
        first_delay_ms: 20,
        lease_ms: 200,
        ..Policy::default_for(Mode::Claimed)
    };
    let store = SqliteStore::open(Options::at(path)).await?;
    let policies = Policies::default().with(kind.clone(), policy);
    let ledger = Ledger::new(Arc::new(store.clone()), policies);
    let projections = Projections::open(store).await?;
    let account = AccountId::new("acme")?;
    charge_all(&ledger, &account, &kind).await?;

    let worker = WorkerId::new("worker-1")?;
    loop {
        projections.catch_up().await?;
        run_out(&ledger, &projections).await?;
        let claimed = ledger.claim(&projections, &[], &worker, None, 2).await?;
        let is_idle = claimed.is_empty();
        for job in claimed {
            work(&ledger, &job).await?;
        }
        projections.catch_up().await?;
        let states = states(&ledger).await?;
        let is_live = |state: &&str| ["queued", "running", "retry_scheduled"].contains(state);
        if !states.values().any(is_live) {
            let letters = projections
                .dead_letters(&DeadLetterFilter::default(), None, 10)
                .await?;
            let letters = letters.rows.iter().map(|row| {
                let reason = row.reason.as_deref().unwrap_or("nothing was said");
                format!("{} ({}, {reason})", row.job, row.cause)
            });
            return Ok(Summary {
                states,
                balance: ledger.account(&account).await?.balance,
                dead_letters: letters.collect(),
            });
        }
        if is_idle {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn charge_all(
    ledger: &Ledger,
    account: &AccountId,
    kind: &Kind,
) -> Result<(), Box<dyn Error>> {
    let grant = Grant {
        account: account.clone(),
        grant: GrantId::new("welcome")?,
        amount: Cost::new(1_000)?,
    };
    assert!(ledger.grant(CommandId::random(), grant).await?.is_done());
    let cost = Cost::new(40)?;
    for job in JOBS {
        let price = PriceSnapshot::flat(cost);
        let charge = ledger.charge_of(account.clone(), kind.clone(), cost, price, None)?;
        let charge = JobCommand::Charge(Box::new(charge));
        let outcome = ledger
            .job(CommandId::random(), JobId::new(job)?, charge)
            .await?;
        println!("{job}: charge {}", outcome.name());
    }
    Ok(())
}

/// One attempt. Whatever is reported here is reported under an id that a service would keep until it has an answer.
async fn work(ledger: &Ledger, claimed: &Claimed) -> Result<(), Box<dyn Error>> {
    let (job, attempt) = (&claimed.job, claimed.attempt);
    println!("{job}: attempt {attempt} until {}", claimed.lease_until);
    tokio::time::sleep(Duration::from_millis(10)).await;
    if job.as_str() == "cursed" {
        println!("{job}: the worker dies");
        return Ok(());
    }
    // A sign of life: too early to be worth an event, as most of the lease is left.
    let extended = ledger
        .job(
            CommandId::random(),
            job.clone(),
            JobCommand::Extend { attempt },
        )
        .await?;
    println!("{job}: extend {}", extended.name());
    let report = if job.as_str() == "flaky" && attempt.get() == 1 {
        JobCommand::Fail {
            attempt,
            class: FailureClass::Retryable,
            reason: Some(Reason::new("out of memory")?),
        }
    } else {
        JobCommand::Succeed {
            attempt,
            result: Some(JobResult::new(format!("s3://out/{job}"))?),
        }
    };
    let name = report.name();
    let outcome = ledger.job(CommandId::random(), job.clone(), report).await?;
    println!("{job}: {name} {}", outcome.name());
    // A success is handed over only now, and only if the ledger has it.
    if name == "succeed" && outcome.is_done() {
        println!("{job}: handed over");
    }
    Ok(())
}

/// Acts on timers that have run out, as the due loop does. The command does nothing unless that very timer still runs.
async fn run_out(ledger: &Ledger, due: &dyn DueSource) -> Result<(), Box<dyn Error>> {
    for expired in due.expired(ledger.now().at, None, 100).await? {
        let expire = JobCommand::Expire {
            timer: expired.timer,
            armed_at: expired.armed_at,
        };
        let outcome = ledger
            .job(CommandId::random(), expired.job.clone(), expire)
            .await?;
        let (job, timer) = (&expired.job, expired.timer.name());
        println!("{job}: {timer} ran out, {}", outcome.name());
    }
    Ok(())
}

async fn states(ledger: &Ledger) -> Result<BTreeMap<String, &'static str>, Box<dyn Error>> {
    let mut states = BTreeMap::new();
    for job in JOBS {
        let (folded, _) = ledger.show(&JobId::new(job)?).await?;
        let recorded = folded.recorded().ok_or("the job was charged")?;
        states.insert(job.to_owned(), recorded.work.name());
    }
    Ok(states)
}
