//! A backfill: a ledger takes its past from a file, whose lines say when they happened.
//!
//! The store's clock is set to each line's instant before the line is carried out, so that what is decided, posted, counted in a day and in a budget
//! month is as it was then. Lines stand in the order of their instants; lines of one instant go together. What stands before the last stored
//! event's instant was carried out by an earlier run, to its end, and is passed over: whatever it came to then is not decided again.
//!
//! To close is to end every job that nobody will go on with: its timers run out, one after the other, posted at the last instant. A run that dies there is gone on
//! with by the next one, without its lines.

use std::sync::Arc;

use recoup::store::sqlite::Begun;
use recoup::{
    Clock, CommandId, EventStore, JobId, LedgerError, ManualClock, SystemClock, Timestamp,
};
use recoup_projections::{JobFilter, Projections, State};
use serde_json::json;
use uuid::Uuid;

use super::input::{FileDigest, Input};
use super::line::Instants;
use super::{Earlier, Import, Stop, progress, report};
use crate::cli::answer::{Answer, complain};
use crate::cli::session::{Global, Session};

/// The scope of the command ids that close a backfill.
const SCOPE: Uuid = uuid::uuid!("b1f0c7de-5a52-5c0b-8f57-2f0f4f5d9a10");

/// How many jobs are looked at together.
const PAGE: u32 = 1_000;

/// The most timers that one job has one after the other: a lease, a retry's wait.
const MAX_TIMERS: u32 = 8;

pub(super) async fn run(
    global: &Global,
    (file, input): (&std::path::Path, Input),
    is_closing: bool,
) -> anyhow::Result<Answer> {
    let clock = ManualClock::starting_at(SystemClock.now());
    let session = global.open_on(Arc::new(clock.clone())).await?;
    let digest = input.digest();
    let begun = session.store.begin_backfill(hexadecimal(digest)).await?;
    // From here on the store's clock is the last stored event's instant until a line says a later one.
    clock.set(Timestamp::from_micros(0));
    let done_before = session.store.now();
    let earlier = Earlier::of(digest, input.lines());
    let mut import = Import::new(&session.ledger, earlier);
    import.instants = Instants::Needed;
    import.backfill = Some((clock.clone(), done_before));
    let mut stopped = None;
    if begun == Begun::Open {
        let bar = progress(file, input.bytes());
        stopped = import.carry_out(input.into_lines(), &bar).await.err();
        bar.finish_and_clear();
    }
    let passed_over = import.passed_over;
    let mut answer = import.tally.answer(session.scale, digest, stopped.as_ref());
    if let Some(stop) = &stopped {
        complain(&report::explain_stop(stop));
    }
    let mut state = if begun == Begun::Closed {
        "closed"
    } else {
        "open"
    };
    let mut ended = 0;
    if begun != Begun::Closed && stopped.is_none() && (is_closing || begun == Begun::Closing) {
        // The last instant: that of the last line, or of what is stored.
        clock.set(session.store.now());
        ended = close(&session, digest).await?;
        state = "closed";
    }
    answer.add(
        "backfill",
        json!({ "state": state, "passed_over": passed_over, "jobs_ended": ended }),
        &told(state, passed_over, ended),
    );
    Ok(answer)
}

fn told(state: &str, passed_over: u64, ended: u64) -> String {
    let mut text = match state {
        "closed" => "the backfill is closed: the ledger is as any other".to_owned(),
        _ => "the backfill is open: end it with --close".to_owned(),
    };
    if passed_over > 0 {
        text.push_str(&format!(
            "; {passed_over} lines were carried out by an earlier run"
        ));
    }
    if ended > 0 {
        text.push_str(&format!("; {ended} open jobs were ended by their timers"));
    }
    text
}

fn hexadecimal(digest: FileDigest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ends every open job, and then the backfill. Gives how many jobs were ended.
async fn close(session: &Session, digest: FileDigest) -> anyhow::Result<u64> {
    session.store.begin_closing().await?;
    let projections = Projections::open(session.store.clone()).await?;
    let mut ended = 0;
    for state in [State::Queued, State::Running, State::RetryScheduled] {
        loop {
            projections.catch_up().await?;
            let filter = JobFilter {
                state: Some(state),
                ..JobFilter::default()
            };
            let page = projections.jobs(filter, None, PAGE).await?;
            if page.rows.is_empty() {
                break;
            }
            for row in &page.rows {
                ended += u64::from(end(session, &row.job, digest).await?);
            }
        }
    }
    session.store.close_backfill().await?;
    Ok(ended)
}

/// Lets a job's timers run out until it has none. Gives whether it had any.
async fn end(session: &Session, job: &JobId, digest: FileDigest) -> anyhow::Result<bool> {
    for tries in 0..MAX_TIMERS {
        let (state, _) = session.ledger.show(job).await?;
        let timer = state.recorded().and_then(|job| job.work.timer());
        let Some((timer, armed_at, deadline)) = timer else {
            return Ok(tries > 0);
        };
        let parts = [
            &digest[..],
            job.as_str().as_bytes(),
            timer.name().as_bytes(),
            &armed_at.get().to_le_bytes(),
        ];
        let id = CommandId::derived(SCOPE, &parts);
        let ran_out = (timer, armed_at, deadline);
        let told = session
            .ledger
            .expire_early(id, job.clone(), ran_out)
            .await?;
        anyhow::ensure!(told.is_done(), "job {job} could not be ended: {told:?}");
    }
    let cause = format!("job {job} has a timer after {MAX_TIMERS} of them ran out");
    Err(LedgerError::Store(recoup::store::StoreError::Unavailable { cause }).into())
}

impl Import<'_> {
    /// Sets the clock to `at`, if this line has not been carried out before.
    pub(super) fn turn_clock(&mut self, at: Option<Timestamp>) -> bool {
        match (&self.backfill, at) {
            (Some((_, done_before)), Some(at)) if at < *done_before => {
                self.passed_over += 1;
                false
            }
            (Some((clock, _)), Some(at)) => {
                clock.set(at);
                true
            }
            (Some(_) | None, _) => true,
        }
    }

    /// Whether a line may stand where it does: in the order of instants, and not in the future.
    pub(super) fn check_instant(&mut self, number: u64, at: Option<Timestamp>) -> Result<(), Stop> {
        let Some(at) = at else { return Ok(()) };
        let cause = if at > SystemClock.now() {
            format!("at {at} has not come yet")
        } else if at < self.last_at {
            format!("at {at} is before {}, of a line before it", self.last_at)
        } else {
            self.last_at = at;
            return Ok(());
        };
        Err(Stop::Line { number, cause })
    }
}
