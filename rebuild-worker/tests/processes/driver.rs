//! A child made of this test binary: it drives the library, as a service does, and writes every answer down as soon as it has it.
//!
//! `cargo test` runs [`child`] as a test too, and then it does nothing.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use recoup::sql::{Database, Transaction};
use recoup::store::StoreError;
use recoup::store::fresh::open;
use recoup::{
    AccountId, Attempt, CommandId, Cost, FailureClass, JobCommand, JobId, Kind, Ledger,
    LedgerError, Outcome, Policies, PriceSnapshot,
};

use crate::children::{Random, Running};

/// Which role a child plays: `drive`, `hold` or `spoil`.
const ROLE: &str = "RECOUP_TEST_ROLE";
/// The ledger's URL.
const STORE: &str = "RECOUP_TEST_STORE";
/// Where to write answers down.
const ANSWERS: &str = "RECOUP_TEST_ANSWERS";
/// What the ids of the jobs begin with.
const SCOPE: &str = "RECOUP_TEST_SCOPE";
/// Where the drawing of jobs begins.
const SEED: &str = "RECOUP_TEST_SEED";

/// How many jobs of one scope the children draw from: few enough to meet.
pub(crate) const JOBS: u64 = 1_500;
/// How many accounts pay for them.
pub(crate) const ACCOUNTS: u64 = 5;
/// What each job costs.
pub(crate) const COST: i64 = 7;
/// When the server ends a child that spoils: far more than it takes the others to find that they have to wait.
const ENDED_AFTER_MS: u64 = 5_000;
/// How many callers a driver has.
const CALLERS: u64 = 6;

fn spawn(role: &str, store: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
    command.args([
        "--exact",
        "driver::child",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(ROLE, role)
        .env(STORE, store)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Starts a child that charges, fails and succeeds random jobs until it is killed.
pub(crate) fn drive(store: &str, answers: &Path, scope: &str, seed: u64) -> Running {
    let mut command = spawn("drive", store);
    command
        .env(ANSWERS, answers)
        .env(SCOPE, scope)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null());
    Running(command.spawn().expect("this binary can be run"))
}

/// Starts a child that begins a transaction which keeps every other one out, and rolls it back when it is told to; returns once it is begun.
pub(crate) fn hold(store: &str) -> Running {
    in_transaction("hold", store)
}

/// As [`hold`], on a server, which ends the session of whoever holds the locks and does nothing: here after [`ENDED_AFTER_MS`]. The transaction has made every balance -1, and is committed
/// when the child is told to go on. What it was told then is its last line.
pub(crate) fn spoil(store: &str) -> Running {
    in_transaction("spoil", store)
}

fn in_transaction(role: &str, store: &str) -> Running {
    let mut child = Running(spawn(role, store).spawn().expect("this binary can be run"));
    let mut stdout = BufReader::new(child.0.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("holding") {
        line.clear();
        assert!(
            stdout.read_line(&mut line).expect("it can be read") > 0,
            "the child holds the ledger's locks"
        );
    }
    // Kept open: what the child prints at its end must find a reader.
    child.0.stdout = Some(stdout.into_inner());
    child
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let store = std::env::var(STORE).expect("the parent says which ledger");
    match role.as_str() {
        "hold" => return hold_transaction(&store),
        "spoil" => return spoil_balances(&store),
        _ => {}
    }
    let answers = std::env::var(ANSWERS).expect("the parent says where to write");
    let scope = std::env::var(SCOPE).expect("the parent gives a scope");
    let seed = std::env::var(SEED)
        .ok()
        .and_then(|seed| seed.parse().ok())
        .expect("the parent gives a seed");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads");
    runtime.block_on(drive_jobs(&store, Path::new(&answers), &scope, seed));
}

fn hold_transaction(store: &str) {
    if let Some(file) = store.strip_prefix("sqlite:") {
        let connection = rusqlite::Connection::open(file).expect("it can be opened");
        connection
            .execute_batch("BEGIN IMMEDIATE")
            .expect("nobody else writes");
        wait_holding();
        connection
            .execute_batch("ROLLBACK")
            .expect("it is the holder's");
        return;
    }
    let held = write(store, |tx| {
        tx.hold_log()?;
        wait_holding();
        let cause = "it is rolled back".to_owned();
        Err(StoreError::Unavailable { cause })
    });
    assert!(held.is_err());
}

fn spoil_balances(store: &str) {
    let told = write(store, |tx| {
        let bound = "SELECT current_setting('idle_in_transaction_session_timeout')";
        let bound = tx.row(bound, &[], |row| row.get::<String>(0))?;
        assert_eq!(bound.as_deref(), Some("30s"), "what the store sets");
        let sooner = format!("SET LOCAL idle_in_transaction_session_timeout = {ENDED_AFTER_MS}");
        tx.execute(&sooner, &[])?;
        tx.hold_log()?;
        tx.execute("UPDATE account_state SET balance = -1", &[])?;
        wait_holding();
        Ok(())
    });
    println!("told: {told:?}");
}

fn write(
    store: &str,
    work: impl FnOnce(&Transaction<'_>) -> Result<(), StoreError> + Send + 'static,
) -> Result<(), StoreError> {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let database: Database = open(store).await.expect("it can be opened");
        database.write(work).await
    })
}

/// Until the parent says go on, or is gone.
fn wait_holding() {
    println!("holding");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

async fn drive_jobs(store: &str, answers: &Path, scope: &str, seed: u64) {
    let store = open(store).await.expect("it can be opened");
    let ledger = Ledger::new(store.as_store(), Policies::default());
    let answers = OpenOptions::new()
        .append(true)
        .create(true)
        .open(answers)
        .expect("it can be written");
    let answers = Arc::new(Mutex::new(answers));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let (ledger, answers, scope) = (ledger.clone(), Arc::clone(&answers), scope.to_owned());
        callers.spawn(async move {
            let mut random = Random(seed.wrapping_mul(CALLERS).wrapping_add(caller));
            loop {
                let number = random.below(JOBS);
                let job = JobId::new(format!("{scope}j{number}")).expect("valid");
                for step in ["charge", "fail", "succeed"] {
                    let told = send(&ledger, job.clone(), number, step).await;
                    let told = told.as_ref().map_or("error", Outcome::name);
                    write_down(&answers, &format!("{step} {job} {told}\n"));
                }
            }
        });
    }
    let ended: Option<Result<(), _>> = callers.join_next().await;
    panic!("callers go on until they are killed: {ended:?}");
}

/// One write, so that a kill leaves a whole line or none.
fn write_down(answers: &Mutex<File>, line: &str) {
    answers
        .lock()
        .expect("nobody panicked")
        .write_all(line.as_bytes())
        .expect("it can be written");
}

async fn send(
    ledger: &Ledger,
    job: JobId,
    number: u64,
    step: &str,
) -> Result<Outcome, LedgerError> {
    let attempt = Attempt::FIRST;
    let command = match step {
        "charge" => {
            let cost = Cost::new(COST).expect("valid");
            let account = AccountId::new(format!("a{}", number % ACCOUNTS)).expect("valid");
            let kind = Kind::new("k").expect("valid");
            let price = PriceSnapshot::flat(cost);
            JobCommand::Charge(Box::new(
                ledger
                    .charge_of(account, kind, cost, price, None)
                    .expect("valid"),
            ))
        }
        "fail" => JobCommand::Fail {
            attempt,
            class: FailureClass::Retryable,
            reason: None,
        },
        _ => JobCommand::Succeed {
            attempt,
            result: None,
        },
    };
    ledger.job(CommandId::random(), job, command).await
}
