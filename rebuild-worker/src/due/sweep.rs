//! One look over every timer that has run out.
//!
//! A sweep reads the whole list, page by page, and sends a command for each row that it does not know yet. A row whose command was answered
//! for good is remembered for as long as the source shows it, so that a source that lags is not asked about again and again; the memory is
//! what the last sweep saw, and no more. A job that cannot be read (poison) or has no answer yet (trouble) is logged once for each
//! timer, and tried again after a delay that doubles: it stops no other, and it does not spin. A page of which no row has an answer ends
//! the sweep, as the store does not answer; the next sweep begins with other rows.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use recoup::store::StoreError;
use recoup::{
    Command, CommandId, DueSource, Expired, JobCommand, JobId, Ledger, LedgerError, Outcome,
    Revision, Timestamp,
};
use uuid::Uuid;

use super::PAGE;

/// What the ids of expiries derive from.
const SCOPE: Uuid = uuid::uuid!("6b1d1f62-6f0e-5b0a-8a55-2f1b0c9f7d31");

/// How long a job in trouble is left alone the first time; the delay doubles from there.
const FIRST_DELAY: Duration = Duration::from_secs(5);

/// The longest such delay.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// What a sweep came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sweep {
    /// How many timers the source says have run out.
    pub seen: u64,
    /// How many of them this sweep acted on.
    pub expired: u64,
    /// The same, by the timer's name.
    pub expired_by: BTreeMap<&'static str, u64>,
    /// How many were over: another loop or a signal was faster, and the source lags.
    pub stale: u64,
    /// How many belong to jobs that cannot be read, or have no answer yet.
    pub in_trouble: u64,
    /// The first deadline that is still to come, as far as the source knows.
    pub next_deadline: Option<Timestamp>,
}

impl Sweep {
    /// Adds a later sweep's counts, and takes over what it saw.
    pub(super) fn add(&mut self, later: Self) {
        self.expired += later.expired;
        add_to(&mut self.expired_by, later.expired_by);
        self.stale += later.stale;
        self.seen = self.seen.max(later.seen);
        self.in_trouble = later.in_trouble;
        self.next_deadline = later.next_deadline;
    }
}

fn add_to(sums: &mut BTreeMap<&'static str, u64>, counts: BTreeMap<&'static str, u64>) {
    for (timer, count) in counts {
        *sums.entry(timer).or_default() += count;
    }
}

/// What whoever watches the loop hears.
#[derive(Debug)]
pub enum Heard<'a> {
    /// A page was acted on: so many timers, by their names.
    Page(&'a BTreeMap<&'static str, u64>),
    /// A sweep is over.
    Swept(&'a Sweep),
    /// The source or the store does not answer: it is tried again.
    Failed(&'a LedgerError),
}

/// What is known of a row from earlier sweeps.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// Answered for good.
    Over,
    /// Not before then.
    Trouble { not_before: Timestamp, tries: u32 },
}

/// A timer of a job: its kind follows from the event that set it.
type Key = (JobId, Revision);

/// Looks over timers again and again, and remembers what it has to.
#[derive(Debug)]
pub struct Sweeper {
    known: HashMap<Key, Known>,
    pace: Duration,
}

/// Whether an error is the store's trouble, and not that of one job whose stored events cannot be.
fn is_of_the_store(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Store(store) if !matches!(store, StoreError::Corrupt { .. }))
}

/// The id of the command that acts on a timer: the same in every loop.
fn id_of(expired: &Expired) -> CommandId {
    let revision = expired.armed_at.get().to_le_bytes();
    let timer = expired.timer.name().as_bytes();
    CommandId::derived(SCOPE, &[expired.job.as_str().as_bytes(), timer, &revision])
}

impl Sweeper {
    /// Pauses `pace` after every page that it sent commands for.
    #[must_use]
    pub fn new(pace: Duration) -> Self {
        Self {
            known: HashMap::new(),
            pace,
        }
    }

    /// Acts on everything that has run out at the store's `now`, as far as `due` knows.
    ///
    /// An error means that the source or the store does not answer; what was acted on before stays done.
    pub async fn sweep(
        &mut self,
        ledger: &Ledger,
        due: &dyn DueSource,
    ) -> Result<Sweep, LedgerError> {
        self.sweep_heard(ledger, due, &|_| {}).await
    }

    /// The same; `heard` is told after every page, as a backlog may take its time.
    pub(super) async fn sweep_heard(
        &mut self,
        ledger: &Ledger,
        due: &dyn DueSource,
        heard: &(dyn Fn(Heard<'_>) + Send + Sync),
    ) -> Result<Sweep, LedgerError> {
        let (now, over_by) = (ledger.now().at, ledger.now().over_by());
        let mut sweep = Sweep::default();
        let mut seen = HashMap::new();
        let mut last = None;
        loop {
            let page = due.expired(over_by, last.as_ref(), PAGE).await?;
            sweep.seen += page.len() as u64;
            let is_last = page.len() < PAGE;
            last = page.last().cloned();
            let mut fresh = Vec::new();
            for row in page {
                let key = (row.job.clone(), row.armed_at);
                match self.known.get(&key) {
                    Some(known @ Known::Over) => {
                        seen.insert(key, *known);
                    }
                    Some(known @ Known::Trouble { not_before, .. }) if now < *not_before => {
                        sweep.in_trouble += 1;
                        seen.insert(key, *known);
                    }
                    Some(Known::Trouble { .. }) | None => fresh.push(row),
                }
            }
            if !fresh.is_empty() {
                let before = std::mem::take(&mut sweep.expired_by);
                let sent = self.send(ledger, fresh, (&mut sweep, &mut seen)).await;
                heard(Heard::Page(&sweep.expired_by));
                add_to(&mut sweep.expired_by, before);
                sent?;
                if !self.pace.is_zero() {
                    tokio::time::sleep(self.pace).await;
                }
            }
            if is_last {
                break;
            }
        }
        // What the source shows no more is forgotten.
        self.known = seen;
        sweep.next_deadline = due.next_deadline(over_by).await?;
        Ok(sweep)
    }

    async fn send(
        &mut self,
        ledger: &Ledger,
        rows: Vec<Expired>,
        (sweep, seen): (&mut Sweep, &mut HashMap<Key, Known>),
    ) -> Result<(), LedgerError> {
        let command = |row: &Expired| {
            let (timer, armed_at) = (row.timer, row.armed_at);
            let expire = JobCommand::Expire { timer, armed_at };
            (id_of(row), Command::Job(row.job.clone(), expire))
        };
        let answers = ledger.batch(rows.iter().map(command).collect()).await;
        let (mut failed, mut is_answering) = (None, false);
        for (row, answer) in rows.into_iter().zip(answers) {
            let key = (row.job.clone(), row.armed_at);
            is_answering |= !matches!(&answer, Err(error) if is_of_the_store(error));
            let known = match answer {
                Ok(Outcome::Applied(receipt)) => {
                    let state = receipt.job.map_or("unknown", |job| job.state);
                    tracing::info!(job.id = %row.job, timer = row.timer.name(), state, "a timer ran out");
                    sweep.expired += 1;
                    *sweep.expired_by.entry(row.timer.name()).or_default() += 1;
                    Known::Over
                }
                Ok(Outcome::AlreadyApplied(_) | Outcome::Noted(_)) => {
                    sweep.stale += 1;
                    Known::Over
                }
                Ok(Outcome::Rejected { rejection, .. }) => {
                    tracing::debug!(job.id = %row.job, code = rejection.code(), "a timer is not acted on");
                    sweep.stale += 1;
                    // A row may be wrong about its deadline and right about its timer: it is asked about again, but not at once.
                    self.trouble(&key, ledger.now().at)
                }
                // Not counted as a try: once the store answers again, nobody waits for long.
                Err(error) if is_of_the_store(&error) => {
                    sweep.in_trouble += 1;
                    failed = Some(error);
                    let not_before = ledger.now().at.after(FIRST_DELAY);
                    Known::Trouble {
                        not_before,
                        tries: 0,
                    }
                }
                Err(error) => {
                    sweep.in_trouble += 1;
                    if !self.known.contains_key(&key) {
                        tracing::error!(job.id = %row.job, revision = %row.armed_at, %error, "a timer cannot be acted on");
                    }
                    self.trouble(&key, ledger.now().at)
                }
            };
            // Kept at once as well: a sweep that ends early must not forget whom it has met.
            self.known.insert(key.clone(), known);
            seen.insert(key, known);
        }
        // Where nobody has an answer it is the store that is in trouble. The rows behind these come first the next time, as these wait.
        match failed {
            Some(error) if !is_answering => Err(error),
            Some(_) | None => Ok(()),
        }
    }

    /// When to try again what did not go through at `now`.
    fn trouble(&self, key: &Key, now: Timestamp) -> Known {
        let tries = match self.known.get(key) {
            Some(Known::Trouble { tries, .. }) => tries.saturating_add(1),
            Some(Known::Over) | None => 0,
        };
        let delay = FIRST_DELAY
            .saturating_mul(1 << tries.min(16))
            .min(MAX_DELAY);
        Known::Trouble {
            not_before: now.after(delay),
            tries,
        }
    }
}
