//! Moving a ledger: backup, export and import of the log, and a backfill.

use std::fs;
use std::sync::Arc;

use recoup::sql::Database;
use recoup::store::fresh::{Fresh, Opening, open};
use recoup::{
    AccountId, Attempt, Command, CommandId, Cost, EventStore, FailureClass, Grant, GrantId,
    JobCommand, JobId, Kind, Ledger, ManualClock, Policies, Position, PriceSnapshot, Timestamp,
};

use crate::sandbox::Sandbox;

/// A ledger with every kind of entry.
fn filled() -> Sandbox {
    let sandbox = Sandbox::new();
    let lines = r#"{"op":"grant","account":"a+b","grant":"g","amount":1000}
{"op":"limit","account":"a+b","monthly_cap":500,"floor":-10}
{"op":"charge","job":"j/1","account":"a+b","cost":40,"kind":"video"}
{"op":"fail","job":"j/1","attempt":1,"reason":"gave up at 30 s"}
{"op":"succeed","job":"j/1","attempt":1,"result":"s3://out/1"}
{"op":"fail","job":"j/1","attempt":1}
{"op":"charge","job":"j2","account":"a+b","cost":7,"kind":"text","policy":"claimed"}
{"op":"start","job":"j2","worker":"w"}
{"op":"adjust","account":"a+b","adjustment":"x","amount":-5,"reason":"a correction","job":"j2"}
"#;
    sandbox.import(lines).ended(3);
    sandbox
}

#[test]
fn a_log_is_taken_over_with_everything_in_it() {
    let sandbox = filled();
    sandbox.line("export log.jsonl").ended(0).says("events", 12);
    let new = sandbox.store("new");
    sandbox
        .line(&format!("{new} import log.jsonl"))
        .ended(0)
        .says("applied", 12);
    for verb in [
        "account show a+b",
        "account entries a+b",
        "account usage a+b",
        "job show j/1",
        "job show j2",
        "contradictions list",
    ] {
        let (old, new) = (
            sandbox.line(verb).ended(0).document(),
            sandbox.line(&format!("{new} {verb}")).ended(0).document(),
        );
        assert_eq!(old, new, "{verb}");
    }
    sandbox
        .line(&format!("{new} audit"))
        .ended(0)
        .says("violations", 0);
    // The log itself, line by line, but for the ledger's own id.
    sandbox.line(&format!("{new} export again.jsonl")).ended(0);
    let events = |name: &str| {
        let text = fs::read_to_string(sandbox.path(name)).expect("it was written");
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[1..lines.len() - 1].to_vec()
    };
    assert_eq!(events("log.jsonl"), events("again.jsonl"));
    // Into a ledger that has events: nothing.
    let before = sandbox.line("account show a+b").document();
    let refused = sandbox.line("import log.jsonl").ended(1).document();
    assert_eq!(refused["error"]["code"], "not_empty");
    assert_eq!(sandbox.line("account show a+b").document(), before);
}

#[test]
fn a_log_keeps_its_zone_and_scale() {
    let sandbox = Sandbox::new();
    sandbox.line("init --zone Asia/Seoul --scale 2").ended(0);
    sandbox.line("export log.jsonl").ended(0);
    let store = sandbox.store("new");
    sandbox
        .line(&format!("{store} --zone UTC import log.jsonl"))
        .ended(2);
    sandbox.line(&format!("{store} import log.jsonl")).ended(0);
    let made = sandbox.line(&format!("{store} init")).ended(0).document();
    assert_eq!(
        (&made["zone"], &made["scale"]),
        (&"Asia/Seoul".into(), &2.into())
    );
    let other = sandbox.store("other");
    sandbox.line(&format!("{other} init --scale 3")).ended(0);
    sandbox.line(&format!("{other} import log.jsonl")).ended(2);
}

#[test]
fn a_log_that_is_not_whole_leaves_the_ledger_empty() {
    let sandbox = filled();
    sandbox.line("export log.jsonl").ended(0);
    let text = fs::read_to_string(sandbox.path("log.jsonl")).expect("it was written");
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len() - 1;
    let joined = |lines: &[&str]| lines.join("\n") + "\n";
    let without = |index: usize| {
        let mut rest = lines.clone();
        rest.remove(index);
        joined(&rest)
    };
    let changed = |index: usize, from: &str, to: &str| {
        let line = lines[index].replacen(from, to, 1);
        assert_ne!(line, lines[index], "{from} is in line {index}");
        let mut rest = lines.clone();
        rest[index] = &line;
        joined(&rest)
    };
    let swapped = {
        let mut rest = lines.clone();
        rest.swap(3, 4);
        joined(&rest)
    };
    let cases = [
        (joined(&lines[..last]), last + 1, "no end line"),
        (joined(&lines[..4]), 5, "no end line"),
        (without(last - 1), last, "differs"),
        (without(3), 4, "revision"),
        (swapped, 4, "revision"),
        (
            joined(&[&lines[..], &[lines[3]]].concat()),
            last + 2,
            "behind the end",
        ),
        (changed(2, "\"data\":\"", "\"data\":\"?"), 3, "data"),
        (changed(2, "\"id\":\"", "\"id\":\"00"), 3, ""),
        (changed(2, "\"version\":1", "\"version\":9"), 3, "version"),
        (
            changed(1, "\"stream\":\"grant-", "\"stream\":\"nobody-"),
            2,
            "",
        ),
        (
            changed(3, "\"posted_at\":\"2", "\"posted_at\":\"1"),
            4,
            "before the event before it",
        ),
        (
            changed(last - 1, "\"posted_at\":\"2", "\"posted_at\":\"3"),
            last,
            "has not come yet",
        ),
        (
            changed(1, "\"posted_at\":\"20", "\"posted_at\":\"19"),
            2,
            "before 1970",
        ),
        (
            changed(0, "\"recoup_log\":1", "\"recoup_log\":2"),
            1,
            "upgrade",
        ),
        (
            changed(0, "\"zone\":\"UTC\"", "\"zone\":\"Mars\""),
            1,
            "zone",
        ),
        (
            changed(last, "\"events\":12", "\"events\":11"),
            last + 1,
            "differs",
        ),
        (
            changed(1, "\"position\":1", "\"position\":1,\"more\":1"),
            2,
            "more",
        ),
    ];
    let new = sandbox.store("new");
    for (text, line, cause) in cases {
        sandbox.write("bad.jsonl", &text);
        let run = sandbox.line(&format!("{new} import bad.jsonl")).ended(1);
        let error = run.document()["error"].clone();
        assert_eq!(error["line"], line, "{error}");
        let said = error["cause"].as_str().expect("a cause");
        assert!(said.contains(cause), "{said}");
        let audit = sandbox.line(&format!("{new} audit")).ended(0);
        assert_eq!(audit.document()["events"], 0);
    }
    sandbox.line(&format!("{new} import log.jsonl")).ended(0);
}

#[test]
fn a_file_takes_no_file_s_place() {
    if Sandbox::on_file().is_none() {
        return;
    }
    let sandbox = filled();
    sandbox.write("there", "mine");
    for verb in ["backup there", "export there"] {
        sandbox.line(verb).ended(1);
        assert_eq!(
            fs::read_to_string(sandbox.path("there")).ok().as_deref(),
            Some("mine")
        );
    }
    for verb in ["backup no/where", "export no/where"] {
        sandbox.line(verb).ended(1);
    }
    sandbox
        .line("--store sqlite:absent.db backup copy.db")
        .ended(1);
    sandbox
        .line("--store sqlite:absent.db export copy.jsonl")
        .ended(1);
    assert!(!sandbox.path("absent.db").exists());
    // Nothing but the ledger, the import and that file.
    let mut left: Vec<String> = fs::read_dir(sandbox.path(""))
        .expect("it is there")
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    left.sort();
    assert_eq!(left, ["import.jsonl", "recoup-data", "there"]);
}

#[test]
fn a_backup_is_a_ledger() {
    if Sandbox::on_file().is_none() {
        return;
    }
    let sandbox = filled();
    let made = sandbox.line("backup copy.db").ended(0).document();
    assert_eq!(made["position"], 12);
    sandbox
        .line("--store sqlite:copy.db audit")
        .ended(0)
        .says("violations", 0);
    let (old, new) = (
        sandbox.line("account show a+b").document(),
        sandbox
            .line("--store sqlite:copy.db account show a+b")
            .document(),
    );
    assert_eq!(old, new);
}

const PAST: &str = r#"{"op":"grant","account":"a","grant":"g","amount":1000,"at":"2026-10-30T10:00:00Z"}
{"op":"charge","job":"j1","account":"a","cost":40,"kind":"k","at":"2026-10-31T14:59:59.999999Z"}
{"op":"fail","job":"j1","attempt":1,"at":"2026-10-31T15:00:00Z"}
{"op":"fail","job":"j1","attempt":1,"at":"2026-10-31T15:00:00Z"}
{"op":"charge","job":"big","account":"a","cost":4000,"kind":"k","at":"2026-10-31T15:00:00Z"}
{"op":"succeed","job":"j1","attempt":1,"at":"2026-11-01T00:00:00Z"}
{"op":"charge","job":"j2","account":"a","cost":40,"kind":"k","policy":"claimed","at":"2026-11-02T00:00:00Z"}
{"op":"start","job":"j2","at":"2026-11-02T00:00:01Z"}
{"op":"charge","job":"j3","account":"a","cost":40,"kind":"k","at":"2026-11-02T00:00:01Z"}
"#;

/// The same commands, lived through on an injected clock, lead to the same events: bytes and instants.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_is_as_if_it_had_been_lived_through() {
    let sandbox = Sandbox::new();
    sandbox.write("past.jsonl", PAST);
    let filled = sandbox
        .line("--zone Asia/Seoul import past.jsonl --backfill")
        .ended(3)
        .document();
    assert_eq!(
        (&filled["applied"], &filled["already_applied"]),
        (&7.into(), &1.into())
    );
    assert_eq!(filled["backfill"]["state"], "open");

    let clock = ManualClock::starting_at(Timestamp::from_micros(0));
    let opening = Opening {
        clock: Arc::new(clock.clone()),
        zone: Some(recoup::Zone::parse("Asia/Seoul").expect("a zone")),
        ..Opening::default()
    };
    let lived = sandbox.other("lived").open_with(opening).await;
    let lived = lived.expect("it opens");
    let ledger = Ledger::new(Arc::new(lived.clone()), Policies::default());
    live_through(&ledger, &clock).await;
    let lived = lived
        .read_all(Position::START, 100)
        .await
        .expect("readable");
    let filled = open(&sandbox.ledger.url()).await.expect("it opens");
    let filled = filled
        .read_all(Position::START, 100)
        .await
        .expect("readable");
    let seen = |events: &[recoup::store::RecordedEvent]| {
        let seen = events.iter().map(|event| {
            let place = (event.position, event.stream.clone(), event.revision);
            (
                place,
                event.type_name.clone(),
                event.posted_at,
                event.data.clone(),
            )
        });
        seen.collect::<Vec<_>>()
    };
    assert_eq!(seen(&lived), seen(&filled));
    // 14:59:59.999999Z is the last microsecond of October in Seoul.
    let usage = sandbox.line("account usage a").ended(0).document();
    let days: Vec<&str> = usage["days"]
        .as_array()
        .expect("days")
        .iter()
        .filter_map(|day| day["day"].as_str())
        .collect();
    assert_eq!(days, ["2026-10-31", "2026-11-01", "2026-11-02"]);
}

async fn live_through(ledger: &Ledger, clock: &ManualClock) {
    let account = AccountId::new("a").expect("an id");
    let job = |name: &str| JobId::new(name).expect("an id");
    let charge = |cost, choice| {
        let (cost, kind) = (
            Cost::new(cost).expect("a cost"),
            Kind::new("k").expect("an id"),
        );
        let price = PriceSnapshot::flat(cost);
        let charge = ledger.charge_of(account.clone(), kind, cost, price, choice);
        JobCommand::Charge(Box::new(charge.expect("a charge")))
    };
    let claimed = Some(recoup::job::PolicyChoice::Mode(
        recoup::retry::Mode::Claimed,
    ));
    let (attempt, class) = (Attempt::FIRST, FailureClass::Retryable);
    let fail = || JobCommand::Fail {
        attempt,
        class,
        reason: None,
    };
    let grant = Grant {
        account: account.clone(),
        grant: GrantId::new("g").expect("an id"),
        amount: Cost::new(1000).expect("an amount"),
    };
    let start = JobCommand::Start {
        worker: None,
        lease: None,
    };
    let commands = [
        ("2026-10-30T10:00:00Z", Command::Grant(grant)),
        (
            "2026-10-31T14:59:59.999999Z",
            Command::Job(job("j1"), charge(40, None)),
        ),
        ("2026-10-31T15:00:00Z", Command::Job(job("j1"), fail())),
        ("2026-10-31T15:00:00Z", Command::Job(job("j1"), fail())),
        (
            "2026-10-31T15:00:00Z",
            Command::Job(job("big"), charge(4000, None)),
        ),
        (
            "2026-11-01T00:00:00Z",
            Command::Job(
                job("j1"),
                JobCommand::Succeed {
                    attempt,
                    result: None,
                },
            ),
        ),
        (
            "2026-11-02T00:00:00Z",
            Command::Job(job("j2"), charge(40, claimed)),
        ),
        ("2026-11-02T00:00:01Z", Command::Job(job("j2"), start)),
        (
            "2026-11-02T00:00:01Z",
            Command::Job(job("j3"), charge(40, None)),
        ),
    ];
    for (at, command) in commands {
        clock.set(Timestamp::parse(at).expect("an instant"));
        let answer = ledger.execute(CommandId::random(), command).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
}

#[test]
fn a_backfill_closes_what_is_open_and_only_its_file_is_taken_before() {
    let sandbox = Sandbox::new();
    sandbox.write("past.jsonl", PAST);
    sandbox.line("import past.jsonl --backfill").ended(3);
    // Nothing else is taken, and everything can be read.
    let refused = sandbox
        .line("account grant --account a --grant x --amount 5")
        .ended(1);
    assert_eq!(refused.document()["code"], "backfilling");
    sandbox
        .import(r#"{"op":"grant","account":"a","grant":"y","amount":5}"#)
        .ended(1);
    sandbox.write("other.jsonl", PAST.replace("1000", "2000"));
    sandbox.line("import other.jsonl --backfill").ended(1);
    sandbox.line("account show a").ended(0).says("balance", 880);
    sandbox.audited();
    // Given again it goes on where it was, and decides nothing anew: the refused charge is not tried again.
    let again = sandbox
        .line("import past.jsonl --backfill")
        .ended(0)
        .document();
    // The lines of the last instant are decided again, and are there; the duplicate and the refused charge came to nothing.
    let counts = [
        &again["applied"],
        &again["already_applied"],
        &again["rejected"],
        &again["backfill"]["passed_over"],
    ];
    assert_eq!(counts, [0, 7, 0, 2]);

    let closed = sandbox
        .line("import past.jsonl --backfill --close")
        .ended(0)
        .document();
    assert_eq!(closed["backfill"]["state"], "closed");
    assert_eq!(closed["backfill"]["jobs_ended"], 2);
    for (job, state) in [
        ("j1", "delivered"),
        ("j2", "dead_lettered"),
        ("j3", "failed"),
    ] {
        let show = sandbox
            .line(&format!("job show {job}"))
            .ended(0)
            .says("state", state);
        let events = show["events"].as_array().expect("events");
        let posted = events
            .iter()
            .filter_map(|event| event["posted_at"].as_str());
        assert!(
            posted.max() <= Some("2026-11-02T00:00:01.000000Z"),
            "{show}"
        );
    }
    sandbox.line("account show a").ended(0).says("balance", 960);
    // Closed is closed: the file changes nothing more, and the ledger is as any other.
    let after = sandbox
        .line("import past.jsonl --backfill --close")
        .ended(0)
        .document();
    let counts = [&after["applied"], &after["already_applied"]];
    assert_eq!(counts, [0, 7]);
    assert_eq!(after["backfill"]["state"], "closed");
    sandbox
        .line("account grant --account a --grant x --amount 5")
        .ended(0);
    sandbox.audited();
}

async fn database(ledger: &Fresh) -> Database {
    open(&ledger.url()).await.expect("it opens")
}

/// Interleaving: a run begins to close, and is killed before it has ended a job. The last line is later than every stored event, as it came to
/// nothing; jobs end then, and not at the last stored instant.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_that_was_killed_as_it_began_to_close_ends_at_its_last_line() {
    let sandbox = Sandbox::new();
    let late = r#"{"op":"charge","job":"big","account":"a","cost":4000,"kind":"k","at":"2026-11-05T00:00:00Z"}"#;
    sandbox.write("past.jsonl", format!("{PAST}{late}\n"));
    let begun = sandbox
        .line("import past.jsonl --backfill")
        .ended(3)
        .document();
    let store = database(&sandbox.ledger).await;
    let digest = begun["sha256"].as_str().expect("a digest").to_owned();
    let open = store.begin_backfill(digest).await;
    assert_eq!(open.ok(), Some(recoup::store::Begun::Open));
    assert!(store.begin_closing().await.is_ok());
    let closed = sandbox
        .line("import past.jsonl --backfill")
        .ended(0)
        .document();
    assert_eq!(closed["backfill"]["state"], "closed");
    for job in ["j2", "j3"] {
        let show = sandbox.line(&format!("job show {job}")).document();
        let last = show["events"].as_array().expect("events").last();
        let posted_at = last.expect("an event")["posted_at"].as_str();
        assert_eq!(posted_at, Some("2026-11-05T00:00:00.000000Z"));
    }
    sandbox.audited();
}

#[test]
fn lines_of_a_backfill_say_when_and_in_order() {
    let grant = |name: &str, at: &str| {
        format!(r#"{{"op":"grant","account":"a","grant":"{name}","amount":1{at}}}"#)
    };
    let first = grant("g0", r#","at":"2026-10-30T10:00:00Z""#);
    let cases = [
        (grant("g1", ""), "at is missing"),
        (grant("g1", r#","at":null"#), "at is missing"),
        (grant("g1", r#","at":5"#), "not a text"),
        (grant("g1", r#","at":"yesterday""#), "not an instant"),
        (grant("g1", r#","at":"2026-10-30T09:59:59Z""#), "before"),
        (
            grant("g1", r#","at":"2999-01-01T00:00:00Z""#),
            "has not come",
        ),
    ];
    for (second, cause) in cases {
        let sandbox = Sandbox::new();
        sandbox.write("past.jsonl", format!("{first}\n{second}\n"));
        let run = sandbox
            .line("import past.jsonl --backfill --close")
            .ended(1)
            .document();
        assert_eq!(run["error"]["line"], 2, "{run}");
        let said = run["error"]["cause"].as_str().expect("a cause");
        assert!(said.contains(cause), "{said}");
        // Nothing is begun: the mended file is another one, and is taken.
        assert!(run["backfill"]["state"].is_null(), "{run}");
        assert_eq!(run["applied"], 0);
        sandbox.line("account show a").ended(0).says("balance", 0);
        sandbox.write("mended.jsonl", format!("{first}\n"));
        let mended = sandbox
            .line("import mended.jsonl --backfill --close")
            .ended(0);
        mended.says("applied", 1);
    }
    let sandbox = Sandbox::new();
    sandbox
        .line("account grant --account a --grant g --amount 5")
        .ended(0);
    sandbox.write("past.jsonl", format!("{first}\n"));
    sandbox.line("import past.jsonl --backfill").ended(1);
    sandbox.line("import past.jsonl --close").ended(2);
}

/// Interleaving: both read the lines; one closes, and the ledger goes live with a job in it; then the other comes to close.
#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_is_closed_once() {
    let sandbox = Sandbox::new();
    let ledger = sandbox.other("l");
    let (one, other) = (database(&ledger).await, database(&ledger).await);
    for store in [&one, &other] {
        let begun = store.begin_backfill("ab".to_owned()).await;
        assert_eq!(begun.ok(), Some(recoup::store::Begun::Open));
    }
    let closing = one.begin_closing().await.expect("it is ours");
    one.close_backfill(closing).await.expect("it is closed");
    assert!(other.begin_closing().await.is_err(), "it is closed already");
    let grant = "account grant --account a --grant g --amount 5";
    sandbox
        .line(&format!("{} {grant}", sandbox.store("l")))
        .ended(0);
    let never = database(&sandbox.other("n")).await;
    assert!(never.begin_closing().await.is_err());
}

/// A log does not go where a file of commands has begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_not_taken_into_an_open_backfill() {
    let sandbox = filled();
    sandbox.line("export log.jsonl").ended(0);
    let (store, named) = (database(&sandbox.other("n")).await, sandbox.store("n"));
    assert!(store.begin_backfill("ab".to_owned()).await.is_ok());
    sandbox.line(&format!("{named} import log.jsonl")).ended(1);
    sandbox
        .line(&format!("{named} account show a+b"))
        .ended(0)
        .says("balance", 0);
}
