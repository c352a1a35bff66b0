//! A ledger in a folder of its own, on a clock that stands still, and ways to fill and look at it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use recoup::codec::{Event, EventType};
use recoup::job::JobEvent;
use recoup::sql::Database;
use recoup::store::fresh::{Fresh, Opening};
use recoup::store::{Append, Appended, EventId, Expected, NewEvent};
use recoup::{
    AccountId, Adjust, AdjustmentId, Attempt, CommandId, Cost, Delta, EventStore, FailureClass,
    Floor, Grant, GrantId, JobCommand, JobId, Kind, Ledger, Limit, ManualClock, Mode, Outcome,
    Policies, Policy, Position, PriceSnapshot, Reason, Revision, Timestamp, Zone,
};
use recoup_projections::audit::Audit;
use recoup_projections::{ProjectionError, Projections};

pub(crate) const NOON: &str = "2026-11-29T12:00:00Z";
pub(crate) const EXTERNAL: &str = "audio.transcribe";
pub(crate) const CLAIMED: &str = "video.render";

pub(crate) struct World {
    pub(crate) fresh: Fresh,
    pub(crate) clock: ManualClock,
    pub(crate) store: Database,
    pub(crate) ledger: Ledger,
}

pub(crate) fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub(crate) fn account(name: &str) -> AccountId {
    AccountId::new(name).unwrap()
}

pub(crate) fn job(name: &str) -> JobId {
    JobId::new(name).unwrap()
}

pub(crate) async fn open(fresh: &Fresh, clock: &ManualClock, zone: Option<Zone>) -> Database {
    let opening = Opening {
        clock: Arc::new(clock.clone()),
        zone,
        ..Opening::default()
    };
    fresh.open_with(opening).await.unwrap()
}

pub(crate) async fn audit(store: &Database) -> Result<Audit, ProjectionError> {
    recoup_projections::audit::audit(store).await
}

fn policies() -> Policies {
    let claimed = Policy {
        cap: 2,
        ..Policy::default_for(Mode::Claimed)
    };
    Policies::default().with(Kind::new(CLAIMED).unwrap(), claimed)
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(NOON, "UTC").await
    }

    pub(crate) async fn with(start: &str, zone: &str) -> Self {
        recoup_kurrentdb_standin::keep_logs();
        let fresh = Fresh::new();
        let clock = ManualClock::starting_at(at(start));
        let zone = Zone::parse(zone).unwrap();
        let store = open(&fresh, &clock, Some(zone)).await;
        let ledger = Ledger::new(store.as_store(), policies());
        Self {
            fresh,
            clock,
            store,
            ledger,
        }
    }

    /// Where the ledger's file is: for what only a file has.
    pub(crate) fn path(&self) -> PathBuf {
        self.fresh.file().expect("it is a file")
    }

    /// The same ledger, opened as another process would.
    pub(crate) async fn beside(&self) -> Database {
        open(&self.fresh, &self.clock, None).await
    }

    /// Catches up on a copy of the ledger that has the log and no projections, `page` events at a time; gives its tables.
    pub(crate) async fn tables_by_pages_of(&self, page: usize) -> Tables {
        let copy = self.fresh.twin();
        let store = open(&copy, &self.clock, Some(self.store.identity().zone)).await;
        self.fresh.copy_to(&copy, &[]);
        let projections = Projections::open(store).await.unwrap();
        projections.with_page_events(page).catch_up().await.unwrap();
        Tables::of_ledger(&copy)
    }

    /// How many events the log has, up to `limit`.
    pub(crate) async fn events(&self, limit: usize) -> usize {
        let events = self.store.read_all(Position::START, limit).await;
        events.unwrap().len()
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables::of_ledger(&self.fresh)
    }

    pub(crate) async fn projections(&self) -> Projections {
        Projections::open(self.store.clone()).await.unwrap()
    }

    pub(crate) async fn project(&self) -> Projections {
        let projections = self.projections().await;
        projections.catch_up().await.unwrap();
        projections
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.fresh.execute(sql);
    }

    pub(crate) fn body(&self, position: i64) -> Vec<u8> {
        let sql = format!("SELECT body FROM appends WHERE position = {position}");
        self.fresh.bytes(&sql)
    }

    /// Overwrites the bytes of an append.
    pub(crate) fn set_body(&self, position: i64, body: &[u8]) {
        let body = self.fresh.literal(body);
        self.sql(&format!(
            "UPDATE appends SET body = {body} WHERE position = {position}"
        ));
    }

    pub(crate) async fn grant(&self, to: &str, grant: &str, amount: i64) {
        let grant = Grant {
            account: account(to),
            grant: GrantId::new(grant).unwrap(),
            amount: Cost::new(amount).unwrap(),
        };
        let outcome = self.ledger.grant(CommandId::random(), grant).await.unwrap();
        assert_eq!(outcome.name(), "applied");
    }

    pub(crate) async fn adjust(
        &self,
        of: &str,
        adjustment: &str,
        amount: i64,
        about: Option<&str>,
    ) {
        let adjust = Adjust {
            account: account(of),
            adjustment: AdjustmentId::new(adjustment).unwrap(),
            amount: Delta::new(amount).unwrap(),
            reason: Reason::new("a correction").unwrap(),
            job: about.map(job),
        };
        let outcome = self.ledger.adjust(CommandId::random(), adjust).await;
        assert_eq!(outcome.unwrap().name(), "applied");
    }

    pub(crate) async fn postpaid(&self, of: &str) {
        let limit = Limit {
            account: account(of),
            floor: Some(Floor::None),
            monthly_cap: None,
        };
        let outcome = self.ledger.limit(CommandId::random(), limit).await.unwrap();
        assert_eq!(outcome.name(), "applied");
    }

    pub(crate) async fn charge(&self, name: &str, payer: &str, kind: &str, cost: i64) {
        let cost = Cost::new(cost).unwrap();
        let (payer, kind) = (account(payer), Kind::new(kind).unwrap());
        let charge = self
            .ledger
            .charge_of(payer, kind, cost, PriceSnapshot::flat(cost), None)
            .unwrap();
        self.applied(name, JobCommand::Charge(Box::new(charge)))
            .await;
    }

    pub(crate) async fn fail(&self, name: &str, attempt: u32) {
        self.applied(name, fail(attempt, FailureClass::Retryable))
            .await;
    }

    pub(crate) async fn succeed(&self, name: &str, attempt: u32) {
        self.applied(name, succeed(attempt)).await;
    }

    pub(crate) async fn applied(&self, name: &str, command: JobCommand) {
        let outcome = self.try_on(name, command).await;
        assert_eq!(outcome.name(), "applied", "{outcome:?}");
    }

    pub(crate) async fn try_on(&self, name: &str, command: JobCommand) -> Outcome {
        let id = CommandId::random();
        self.ledger.job(id, job(name), command).await.unwrap()
    }

    /// Appends an event of a type that this build does not know. Gives its place.
    pub(crate) async fn append_unknown(&self, stream: &str, expected: Expected) -> Position {
        let stand_in = JobEvent::Discarded(recoup::job::Discarded { reason: None });
        let stream = recoup::codec::StreamName::from_stored(stream);
        let command = CommandId::random();
        let append = Append {
            stream,
            expected,
            events: vec![NewEvent {
                id: EventId::new(uuid::Uuid::new_v4()),
                event_type: PAUSED,
                data: vec![1, 2, 3],
                event: Event::Job(stand_in),
            }],
            metadata: format!(r#"{{"$correlationId":"x","$causationId":"{command}"}}"#),
            admission: None,
        };
        match self.store.append(append).await.unwrap() {
            Appended::Committed { position, .. } => position,
            other => panic!("{other:?}"),
        }
    }

    /// Some of everything: every kind of entry and event, in appends of one to three events, over three days.
    pub(crate) async fn busy(&self, steps: u32, seed: u64) {
        let mut random = Random(seed);
        for payer in ACCOUNTS {
            if self.events(8).await < 8 {
                self.postpaid(payer).await;
                self.grant(payer, "welcome", 10_000).await;
            }
        }
        for step in 0..steps {
            self.clock.advance(Duration::from_secs(random.below(200)));
            let name = format!("job-{seed}-{}", random.below(u64::from(steps / 6)));
            let attempt = u32::try_from(random.below(5) / 3).unwrap() + 1;
            let payer = ACCOUNTS[random.index(ACCOUNTS.len())];
            let command = match random.below(18) {
                0..4 => self.charge_any(&mut random, payer),
                4 | 5 => JobCommand::Start {
                    worker: None,
                    lease: None,
                },
                6..9 => fail(attempt, random.class()),
                9 | 10 => succeed(attempt),
                11 => JobCommand::Cancel { reason: None },
                12 => JobCommand::Redrive { reason: None },
                13 | 14 => match self.timer(&name).await {
                    Some(expire) => expire,
                    None => continue,
                },
                15 => JobCommand::Extend {
                    attempt: Attempt::new(attempt),
                },
                16 => JobCommand::Discard { reason: None },
                _ => {
                    let id = format!("a-{seed}-{step}");
                    let amount = i64::try_from(random.below(9)).unwrap() - 10;
                    self.adjust(payer, &id, amount, Some(&name)).await;
                    continue;
                }
            };
            let _ = self.try_on(&name, command).await;
        }
    }

    /// What a loop sends that has seen the job's timer.
    pub(crate) async fn timer(&self, name: &str) -> Option<JobCommand> {
        let (found, _) = self.ledger.show(&job(name)).await.unwrap();
        let (timer, armed_at, _) = found.recorded()?.work.timer()?;
        Some(JobCommand::Expire { timer, armed_at })
    }

    /// Makes a dead letter: both of its attempts fail.
    pub(crate) async fn die(&self, name: &str, payer: &str) {
        self.charge(name, payer, CLAIMED, 40).await;
        for attempt in [1, 2] {
            let start = JobCommand::Start {
                worker: None,
                lease: None,
            };
            self.applied(name, start).await;
            self.fail(name, attempt).await;
            self.clock.advance(Duration::from_secs(6));
        }
    }

    fn charge_any(&self, random: &mut Random, payer: &str) -> JobCommand {
        let kind = Kind::new([EXTERNAL, CLAIMED][random.index(2)]).unwrap();
        let cost = Cost::new(i64::try_from(random.below(50)).unwrap() + 1).unwrap();
        let price = PriceSnapshot::flat(cost);
        let charge = self
            .ledger
            .charge_of(account(payer), kind, cost, price, None);
        JobCommand::Charge(Box::new(charge.unwrap()))
    }
}

/// A type that a newer build may write.
pub(crate) const PAUSED: EventType = EventType {
    name: "recoup.job.paused",
    version: 1,
};

const ACCOUNTS: [&str; 4] = ["acme", "bücher & co", "c", "d"];

pub(crate) fn fail(attempt: u32, class: FailureClass) -> JobCommand {
    JobCommand::Fail {
        attempt: Attempt::new(attempt),
        class,
        reason: None,
    }
}

pub(crate) fn succeed(attempt: u32) -> JobCommand {
    JobCommand::Succeed {
        attempt: Attempt::new(attempt),
        result: None,
    }
}

pub(crate) fn follows(revision: u64) -> Expected {
    Expected::Exact(Revision::new(revision))
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same seed gives the same history.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    fn class(&mut self) -> FailureClass {
        match self.below(6) {
            0 => FailureClass::Cancelled,
            1 => FailureClass::Terminal,
            _ => FailureClass::Retryable,
        }
    }
}

pub(crate) const TABLES: [&str; 8] = [
    "checkpoints",
    "entries",
    "daily_usage",
    "jobs",
    "contradictions",
    "projection_skips",
    "due",
    "dead_letters",
];

/// Every row of every table, as text.
#[derive(PartialEq, Eq)]
pub(crate) struct Tables(Vec<(&'static str, Vec<String>)>);

impl Tables {
    pub(crate) fn of_ledger(fresh: &Fresh) -> Self {
        let rows = |table| {
            let rows = fresh.table(&format!("SELECT * FROM {table}"));
            let mut rows: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
            // Which order they lie in is the database's own business.
            rows.sort_unstable();
            rows
        };
        Self(TABLES.map(|table| (table, rows(table))).into())
    }

    pub(crate) fn of(&self, table: &str) -> &[String] {
        let found = self.0.iter().find(|(name, _)| *name == table);
        &found.unwrap().1
    }

    /// Fails with the first row that differs.
    pub(crate) fn assert_same(&self, other: &Self, what: &str) {
        for ((table, ours), (_, theirs)) in self.0.iter().zip(&other.0) {
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert_eq!(ours, theirs, "{what}: {table}");
            }
            assert_eq!(ours.len(), theirs.len(), "{what}: rows of {table}");
        }
    }
}
