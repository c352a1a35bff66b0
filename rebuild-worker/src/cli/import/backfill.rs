//! A backfill: a ledger takes its past from a file, whose lines say when they happened.
//!
//! The store's clock is set to each line's instant before the line is carried out, so that what is decided, posted, counted in a day and in a budget
//! month is as it was then. Lines stand in the order of their instants; lines of one instant go together. What stands before the last stored
//! event's instant was carried out by an earlier run, to its end, and is not decided again: what is on record answers as stored, and what came to nothing
//! then is passed over.
//!
//! To close is to end every job that nobody will go on with: its timers run out, one after the other, posted at the last instant. A run that dies there is gone on
//! with by the next one, without its lines.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use recoup::codec::{Metadata, StreamName};
use recoup::store::{Begun, Closing};
use recoup::{
    Clock, CommandId, EventStore, JobId, Ledger, LedgerError, ManualClock, SystemClock, Timestamp,
};
use recoup_projections::{JobFilter, Projection, Projections, State};
use serde_json::json;
use uuid::Uuid;

use super::input::{FileDigest, Input, Lines};
use super::line::Instants;
use super::report::{Tally, Told};
use super::{Earlier, Import, Line, Stop, progress, report};
use crate::cli::answer::{Answer, complain};
use crate::cli::session::{Global, Session};
use crate::cli::table::counted;

/// The scope of the command ids that close a backfill.
const SCOPE: Uuid = uuid::uuid!("b1f0c7de-5a52-5c0b-8f57-2f0f4f5d9a10");

/// How many jobs are looked at together.
const PAGE: u32 = 1_000;

/// The most timers that one job has one after the other: a lease, a retry's wait.
const MAX_TIMERS: u32 = 8;

pub(super) async fn run(
    global: &Global,
    (file, mut input): (&std::path::Path, Input),
    is_closing: bool,
) -> anyhow::Result<Answer> {
    let clock = ManualClock::starting_at(SystemClock.now());
    let session = global.open_on(Arc::new(clock.clone())).await?;
    let store = &session.database;
    let digest = input.digest();
    // Before the ledger is bound to this file: a line that is wrong could not be mended afterwards, as the mended file is another one.
    let last_at = match check(&session, input.again()?) {
        Ok(last_at) => last_at,
        Err(stop) => {
            let answer = refused(&session, digest, &stop);
            complain(&report::explain_stop(&stop));
            return Ok(answer);
        }
    };
    input.rewind()?;
    let begun = store.begin_backfill(hexadecimal(digest)).await?;
    // From here on the store's clock is the last stored event's instant until a line says a later one.
    clock.set(Timestamp::from_micros(0));
    let done_before = match begun {
        Begun::Open => session.database.now(),
        // Whoever began to close had carried out every line.
        Begun::Closing | Begun::Closed => Timestamp::from_micros(i64::MAX),
    };
    let earlier = Earlier::of(digest, input.lines());
    let mut import = Import::new(&session.ledger, earlier);
    import.instants = Instants::Needed;
    import.backfill = Some((clock.clone(), done_before));
    let bar = progress(file, input.bytes());
    let stopped = import.carry_out(input.into_lines(), &bar).await.err();
    bar.finish_and_clear();
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
        // A run that was killed here may have ended jobs later than the last stored line, which may have come to nothing.
        clock.set(last_at.max(session.database.now()));
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
/// Reads the whole file, and carries nothing out. Gives the last line's instant.
fn check(session: &Session, lines: Lines) -> Result<Timestamp, Stop> {
    let mut lines = lines;
    let mut checked = Import::new(&session.ledger, Earlier::of([0; 32], 0));
    checked.instants = Instants::Needed;
    loop {
        let (window, ended) = checked.read_window(&mut lines);
        ended?;
        if window.is_empty() {
            return Ok(checked.last_at);
        }
    }
}

fn refused(session: &Session, digest: FileDigest, stop: &Stop) -> Answer {
    let mut answer = Tally::default().answer(session.scale, digest, Some(stop));
    let value = json!({ "state": null, "passed_over": 0, "jobs_ended": 0 });
    answer.add("backfill", value, "no backfill was begun");
    answer
}

fn told(state: &str, passed_over: u64, ended: u64) -> String {
    let mut text = match state {
        "closed" => "the backfill is closed: the ledger is as any other".to_owned(),
        _ => "the backfill is open: end it with --close".to_owned(),
    };
    if passed_over > 0 {
        text.push_str(&format!(
            "; {} came to nothing in an earlier run",
            counted(passed_over, "line")
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
    let store = &session.database;
    let closing = store.begin_closing().await?;
    let projections = Projections::open(session.database.clone()).await?;
    let progress = projections.catch_up().await?;
    if let Some((projection, halt)) = progress
        .halted()
        .find(|(name, _)| *name == Projection::Jobs)
    {
        anyhow::bail!(
            "open jobs cannot be told: {projection} cannot get past event {}: {}",
            halt.position,
            halt.reason
        );
    }
    let mut ended = 0;
    for state in [State::Queued, State::Running, State::RetryScheduled] {
        let mut after = None;
        loop {
            let filter = JobFilter {
                state: Some(state),
                ..JobFilter::default()
            };
            // Rows are as of the catching up: jobs that are ended meanwhile keep their places.
            let page = projections.jobs(filter, after, PAGE).await?;
            for row in &page.rows {
                ended += u64::from(end((session, &closing), &row.job, digest).await?);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    store.close_backfill(closing).await?;
    Ok(ended)
}

/// Lets a job's timers run out until it has none. Gives whether it had any.
async fn end(
    (session, closing): (&Session, &Closing),
    job: &JobId,
    digest: FileDigest,
) -> anyhow::Result<bool> {
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
            .expire_early(closing, id, job.clone(), ran_out)
            .await?;
        anyhow::ensure!(told.is_done(), "job {job} could not be ended: {told:?}");
    }
    let cause = format!("job {job} has a timer after {MAX_TIMERS} of them ran out");
    Err(LedgerError::Store(recoup::store::StoreError::Unavailable { cause }).into())
}

/// What the commands of these streams come to when they come again.
async fn told_of(
    ledger: &Ledger,
    names: Vec<StreamName>,
) -> Result<HashMap<CommandId, Told>, LedgerError> {
    let mut told = HashMap::new();
    for recorded in ledger.store().read_streams(names).await?.iter().flatten() {
        let unreadable = |error| LedgerError::unreadable(&recorded.stream, error);
        let metadata =
            Metadata::parse(&recorded.metadata, recorded.position).map_err(unreadable)?;
        if let Entry::Vacant(vacant) = told.entry(metadata.command) {
            vacant.insert(Told::of_repeat(recorded).map_err(unreadable)?);
        }
    }
    Ok(told)
}

impl Import<'_> {
    /// Sets the clock to `at`, if lines of that instant have not been carried out before.
    pub(super) fn turn_clock(&self, at: Option<Timestamp>) -> bool {
        match (&self.backfill, at) {
            (Some((_, done_before)), Some(at)) if at < *done_before => false,
            (Some((clock, _)), Some(at)) => {
                clock.set(at);
                true
            }
            (Some(_) | None, _) => true,
        }
    }

    /// Answers lines that an earlier run carried out: as stored, where they are.
    pub(super) async fn tell_passed_over(&mut self, lines: Vec<Line>) -> Result<(), Stop> {
        let Some(number) = lines.first().map(|line| line.number) else {
            return Ok(());
        };
        let names: HashSet<StreamName> = lines
            .iter()
            .map(|line| line.command.stream().name())
            .collect();
        let names = names.into_iter().collect();
        let stored = told_of(self.ledger, names)
            .await
            .map_err(|error| Stop::Ledger { number, error })?;
        for line in lines {
            match stored.get(&line.id) {
                Some(told) => self.tally.count(line.number, told.clone()),
                None => self.passed_over += 1,
            }
        }
        Ok(())
    }

    /// Whether a line may stand where it does: in the order of instants, and not in the future.
    pub(super) fn check_instant(&mut self, number: u64, at: Option<Timestamp>) -> Result<(), Stop> {
        let Some(at) = at else { return Ok(()) };
        let cause = if at > SystemClock.now() {
            format!("at {at} has not come yet")
        } else if at < Timestamp::from_micros(0) {
            format!("at {at} is before 1970, where time begins here")
        } else if at < self.last_at {
            format!("at {at} is before {}, of a line before it", self.last_at)
        } else {
            self.last_at = at;
            return Ok(());
        };
        Err(Stop::Line { number, cause })
    }
}
