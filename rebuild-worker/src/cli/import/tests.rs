//! Chunks give what one by one gives; a file given again changes nothing.
//!
//! Random files over few jobs and accounts, so that lines meet: duplicates, refusals for lack of credit, charges of jobs that exist,
//! limits in between. Two ledgers with one clock that stands still during a file: one takes line after line, the other the import.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use recoup::retry::Mode;
use recoup::store::memory::MemoryStore;
use recoup::store::{EventStore, RecordedEvent};
use recoup::{Kind, Ledger, ManualClock, Policies, Policy, Position, Timestamp, Zone};

use super::report::Told;
use super::*;

/// A ledger in memory with a clock of its own.
struct World {
    store: MemoryStore,
    clock: ManualClock,
}

impl World {
    fn new() -> Self {
        let begin = Timestamp::parse("2026-11-29T10:00:00Z").expect("valid");
        let clock = ManualClock::starting_at(begin);
        Self {
            store: MemoryStore::new(Zone::UTC, Arc::new(clock.clone())),
            clock,
        }
    }

    /// A handle with a cold cache, as a process has that begins.
    fn ledger(&self) -> Ledger {
        let claimed = Policy {
            cap: 2,
            ..Policy::default_for(Mode::Claimed)
        };
        let policies = Policies::default().with(Kind::new("claimed").expect("valid"), claimed);
        Ledger::new(Arc::new(self.store.clone()), policies)
    }

    async fn log(&self) -> Vec<RecordedEvent> {
        self.store
            .read_all(Position::START, usize::MAX)
            .await
            .expect("memory answers")
    }

    async fn import(&self, text: &str) -> Vec<(u64, Told)> {
        self.import_part(text, None).await
    }

    /// Imports a file, or its first lines only, as a run does that is killed there.
    async fn import_part(&self, text: &str, lines: Option<usize>) -> Vec<(u64, Told)> {
        let ledger = self.ledger();
        let input = file(text);
        let earlier = Earlier::of(input.digest(), input.lines());
        let mut import = Import {
            window: 7,
            ..Import::new(&ledger, earlier)
        };
        match lines {
            None => {
                let stopped = import
                    .carry_out(input.into_lines(), &ProgressBar::hidden())
                    .await;
                assert!(stopped.is_ok(), "every line can be read");
            }
            Some(lines) => {
                import.window = lines;
                let (window, ended) = import.read_window(&mut input.into_lines());
                assert!(ended.is_ok(), "every line can be read");
                assert!(
                    import.carry_out_window(window).await.is_ok(),
                    "memory answers"
                );
            }
        }
        import.tally.told.into_iter().collect()
    }

    async fn one_by_one(&self, text: &str) -> Vec<(u64, Told)> {
        let ledger = self.ledger();
        let input = file(text);
        let earlier = Earlier::of(input.digest(), input.lines());
        let mut told = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let parsed = line::parse(line.as_bytes(), &ledger, line::Instants::Refused);
            let (command, _) = parsed.expect("a valid line");
            let outcome = ledger
                .execute(earlier.id(number), command)
                .await
                .expect("memory answers");
            told.push((number, outcome.into()));
        }
        told
    }
}

fn file(text: &str) -> Input {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("written");
    Input::open(file.path()).expect("it can be read")
}

/// One line; most speak of the same few jobs.
fn line(caps: &'static [&'static str]) -> impl Strategy<Value = String> {
    let job = 0..5_u8;
    let attempt = 1..3_u8;
    let class = prop::sample::select(vec!["retryable", "retryable", "terminal", "cancelled"]);
    let kind = prop::sample::select(vec!["external", "external", "claimed"]);
    // Mostly the same charge of a job, sometimes another one.
    let cost = prop::sample::select(vec![30, 30, 30, 40]);
    let charge = (job.clone(), kind, cost, 0..9_u8).prop_map(|(job, kind, cost, other)| {
        let account = if other == 0 { job } else { job % 2 };
        format!(r#"{{"op":"charge","job":"j{job}","account":"a{account}","cost":{cost},"kind":"{kind}"}}"#)
    });
    let start = job
        .clone()
        .prop_map(|job| format!(r#"{{"op":"start","job":"j{job}"}}"#));
    let fail = (job.clone(), attempt.clone(), class).prop_map(|(job, attempt, class)| {
        format!(r#"{{"op":"fail","job":"j{job}","attempt":{attempt},"class":"{class}"}}"#)
    });
    let signal = (
        prop::sample::select(vec!["succeed", "extend"]),
        job.clone(),
        attempt,
    );
    let signal = signal.prop_map(|(op, job, attempt)| {
        format!(r#"{{"op":"{op}","job":"j{job}","attempt":{attempt}}}"#)
    });
    let end = (
        prop::sample::select(vec!["cancel", "redrive", "discard"]),
        job,
    );
    let end = end.prop_map(|(op, job)| format!(r#"{{"op":"{op}","job":"j{job}"}}"#));
    let account = 0..2_u8;
    let grant = (account.clone(), 0..4_u8, 20..60_i64).prop_map(|(account, grant, amount)| {
        format!(r#"{{"op":"grant","account":"a{account}","grant":"g{grant}","amount":{amount}}}"#)
    });
    let adjust = (account.clone(), 0..3_u8, -30..30_i64).prop_map(|(account, adjustment, amount)| {
        let amount = if amount == 0 { 1 } else { amount };
        format!(
            r#"{{"op":"adjust","account":"a{account}","adjustment":"x{adjustment}","amount":{amount},"reason":"r"}}"#
        )
    });
    let limit = (account, prop::sample::select(caps)).prop_map(|(account, cap)| {
        format!(r#"{{"op":"limit","account":"a{account}","monthly_cap":{cap}}}"#)
    });
    prop_oneof![
        6 => charge, 3 => start, 6 => fail, 5 => signal, 2 => end, 3 => grant, 1 => adjust, 1 => limit
    ]
}

/// A file in which lines compete for little credit.
fn tight() -> impl Strategy<Value = String> {
    prop::collection::vec(line(&["null", "60", "100"]), 1..40).prop_map(|lines| lines.join("\n"))
}

/// A file in which nothing is refused for lack of credit: what is, is tried again by the next run.
fn ample() -> impl Strategy<Value = String> {
    prop::collection::vec(line(&["null", "1000000", "2000000"]), 1..40).prop_map(|lines| {
        let postpaid = |account| format!(r#"{{"op":"limit","account":"a{account}","floor":null}}"#);
        (0..5)
            .map(postpaid)
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
}

fn again(told: Vec<(u64, Told)>) -> Vec<(u64, Told)> {
    let again = |told| {
        if told == Told::Applied {
            Told::AlreadyApplied
        } else {
            told
        }
    };
    told.into_iter()
        .map(|(number, told)| (number, again(told)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_give_what_one_by_one_gives(files in prop::collection::vec(tight(), 1..4)) {
        runtime().block_on(async {
            let (chunked, single) = (World::new(), World::new());
            for text in &files {
                prop_assert_eq!(chunked.import(text).await, single.one_by_one(text).await);
                prop_assert_eq!(chunked.log().await, single.log().await);
                for world in [&chunked, &single] {
                    world.clock.advance(Duration::from_secs(7));
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_file_given_again_changes_nothing(text in ample()) {
        runtime().block_on(async {
            let world = World::new();
            let first = world.import(&text).await;
            let log = world.log().await;
            for _ in 0..2 {
                let again_told = world.import(&text).await;
                prop_assert_eq!(&world.log().await, &log);
                prop_assert_eq!(again_told, again(first.clone()));
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_run_that_was_killed_is_continued_by_the_next(text in ample(), lines in 1..45_usize) {
        runtime().block_on(async {
            let (killed, whole) = (World::new(), World::new());
            killed.import_part(&text, Some(lines)).await;
            killed.import(&text).await;
            whole.import(&text).await;
            prop_assert_eq!(killed.log().await, whole.log().await);
            Ok(())
        })?;
    }
}

/// The batch call takes the charge of a job that its cache does not know for the job's first: what follows must not rest on that.
#[test]
fn a_charge_of_a_job_that_exists_misleads_nothing_behind_it() {
    let charge = |account, cost, kind| {
        format!(
            r#"{{"op":"charge","job":"j","account":"{account}","cost":{cost},"kind":"{kind}"}}"#
        )
    };
    let limits = r#"{"op":"limit","account":"a","floor":null}"#;
    let earlier = format!("{limits}\n{}", charge("a", 30, "claimed"));
    let later = format!(
        "{}\n{}",
        charge("b", 77, "external"),
        r#"{"op":"fail","job":"j","attempt":1}"#
    );
    runtime().block_on(async {
        let (chunked, single) = (World::new(), World::new());
        for text in [&earlier, &later] {
            assert_eq!(chunked.import(text).await, single.one_by_one(text).await);
            assert_eq!(chunked.log().await, single.log().await);
        }
        let told = chunked.import(&later).await;
        let codes = told.iter().map(|(_, told)| match told {
            Told::Rejected(rejection) => rejection.code(),
            Told::Applied | Told::AlreadyApplied | Told::Noted => "none",
        });
        assert_eq!(codes.collect::<Vec<_>>(), ["differs", "not_started"]);
    });
}
