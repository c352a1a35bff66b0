//! `recoup up`: real processes, asked over plain TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{ChildStderr, Stdio};
use std::time::Duration;

use recoup::sql::Transaction;
use recoup::store::fresh::Opening;
use recoup_projections::Projection;
use serde_json::Value;

use crate::children::{Running, eventually};
use crate::driver::hold;
use crate::sandbox::Sandbox;

/// A running `recoup up`.
pub(crate) struct Up {
    process: Running,
    address: String,
    stderr: BufReader<ChildStderr>,
}

impl Up {
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        Self::start_with(sandbox, &[])
    }

    fn start_with(sandbox: &Sandbox, args: &[&str]) -> Self {
        let mut command = sandbox.command(&["--json", "up", "--listen", "127.0.0.1:0"]);
        command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be run");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("it can be read");
        let address = line
            .split_once("http://")
            .and_then(|(_, rest)| rest.split_once(' '))
            .unwrap_or_else(|| panic!("no address: {line}"))
            .0
            .to_owned();
        Self {
            process: Running(child),
            address,
            stderr,
        }
    }

    /// Asks for a path: the status and the body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), body.to_owned())
    }

    fn ready(&self) -> (u16, Value) {
        let (status, body) = self.get("/readyz");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Waits until it says that it is ready, or that it is not; gives why.
    pub(crate) fn wait_for(&self, status: u16) -> Value {
        let mut last = Value::Null;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("readiness changes", || {
                let (found, document) = self.ready();
                last = document;
                (found == status).then_some(())
            });
        }));
        assert!(found.is_ok(), "wanted {status}: {last}");
        last
    }

    /// The value of a metric, by its whole name with labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (status, body) = self.get("/metrics");
        assert_eq!(status, 200);
        let line = body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {body}"))
    }

    pub(crate) fn of_entries(&self, name: &str) -> f64 {
        self.metric(&format!(
            "recoup_projection_{name}{{projection=\"entries\"}}"
        ))
    }

    /// Stops it where it is in no transaction: one that slept in one would keep the ledger's locks from everybody.
    fn stop_between_transactions(&self, sandbox: &Sandbox) {
        eventually("it is stopped outside a transaction", || {
            self.process.signal("STOP");
            eventually("every thread is stopped", || {
                self.process.is_stopped().then_some(())
            });
            let is_free = sandbox.is_free();
            if !is_free {
                self.process.signal("CONT");
            }
            is_free.then_some(())
        });
    }

    /// Ends it in peace; gives its document and the rest of what it said.
    pub(crate) fn end(mut self, signal: &str) -> (Value, String) {
        self.process.signal(signal);
        let status = self.process.ended();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("UTF-8");
        assert!(status.success(), "SIG{signal} is a good end: {said}");
        let mut stdout = self.process.0.stdout.take().expect("it is piped");
        let document = serde_json::from_reader(&mut stdout).expect("one document");
        (document, said)
    }
}

fn grant(sandbox: &Sandbox, grant: &str) {
    sandbox
        .line(&format!(
            "account grant --account a --grant {grant} --amount 100"
        ))
        .ended(0);
}

fn reasons(document: &Value) -> Vec<String> {
    let reasons = document["reasons"].as_array().expect("a list");
    reasons.iter().map(ToString::to_string).collect()
}

impl Sandbox {
    /// Whether nobody is in a writing transaction.
    fn is_free(&self) -> bool {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        runtime.block_on(async {
            let opening = Opening {
                busy_timeout: Duration::from_millis(50),
                ..Opening::default()
            };
            let database = self.ledger.open_with(opening).await;
            let database = database.expect("it can be opened");
            let taken = database.write(|tx: &Transaction<'_>| tx.hold_log()).await;
            taken.is_ok()
        })
    }
}

fn sql(sandbox: &Sandbox, sql: &str) {
    sandbox.ledger.execute(sql);
}

/// Entries cannot get past the event at 3, since a row stands where its own has to be; then it is charged.
fn halt_entries(sandbox: &Sandbox) {
    sql(
        sandbox,
        "INSERT INTO entries VALUES (3, 'x', 'grant', 1, 1, NULL, NULL, 'g', NULL, 0, NULL)",
    );
    grant(sandbox, "g3");
}

#[test]
fn a_halted_projection_is_shown_and_is_led_out_by_a_skip_with_a_reason() {
    let sandbox = Sandbox::new();
    grant(&sandbox, "g1");
    grant(&sandbox, "g2");
    let up = Up::start(&sandbox);
    up.wait_for(200);
    halt_entries(&sandbox);
    grant(&sandbox, "g4");
    let document = up.wait_for(503);
    eventually("the others go on", || {
        let position = up.metric("recoup_projection_position{projection=\"jobs\"}");
        (position == 4.0).then_some(())
    });
    let why = reasons(&document);
    assert!(why[0].contains("entries"), "{why:?}");
    assert_eq!(
        (up.of_entries("halted"), up.of_entries("position")),
        (1.0, 2.0)
    );
    assert_eq!(
        up.metric("recoup_projection_halted{projection=\"jobs\"}"),
        0.0
    );
    assert_eq!(up.metric("recoup_loop_up{loop=\"projector\"}"), 1.0);
    assert_eq!(up.get("/healthz").0, 200);
    assert_eq!(up.get("/nothing").0, 404);

    // Lists say that they are not the whole truth.
    let listed = sandbox.line("account entries a").ended(0);
    assert_eq!(listed.document()["halted"]["position"], 3);
    assert_eq!(listed.document()["lag_events"], 2);
    assert!(
        listed.stderr.contains("cannot get past event 3"),
        "{}",
        listed.stderr
    );

    // Another event than the one in the way is refused, and so is a skip without a reason.
    let wrong = "project skip entries --position 4 --reason oops";
    sandbox
        .line(wrong)
        .ended(3)
        .says("code", "halted_elsewhere");
    sandbox.line("project skip entries --position 3").ended(2);
    let args = [
        "project",
        "skip",
        "--projection",
        "entries",
        "--position",
        "3",
        "--reason",
        "a row by hand",
        "--by",
        "ops",
    ];
    let skipped = sandbox.run(&args).ended(0).document();
    assert_eq!(
        (&skipped["position"], &skipped["by"]),
        (&3.into(), &"ops".into())
    );
    let document = up.wait_for(200);
    assert_eq!(document["projections"][0]["skips"], 1);
    assert_eq!(
        (up.of_entries("halted"), up.of_entries("position")),
        (0.0, 4.0)
    );
    sandbox.run(&args).ended(3).says("code", "not_halted");

    let audit = sandbox.line("audit").ended(4).document();
    let findings = audit["findings"].to_string();
    assert!(
        findings.contains("event 3 was skipped in entries by ops: a row by hand"),
        "{findings}"
    );
    // Made anew under the running process, which follows.
    sandbox.line("project reset entries --no-catch-up").ended(0);
    eventually("the rows are back", || {
        let listed = sandbox.line("account entries a").ended(0).document();
        (listed["entries"].as_array().map(Vec::len) == Some(4)).then_some(())
    });
    up.wait_for(200);
    sandbox.audited();
    let (document, said) = up.end("TERM");
    assert_eq!(
        (&document["restarts"], &document["unfinished"]),
        (&0.into(), &Value::Array(vec![]))
    );
    // The halt was logged, once.
    assert_eq!(said.matches("a projection is halted").count(), 1, "{said}");
}

/// The rows pass to another build under the running process: its loop stops, and what it does not apply counts as lag.
#[test]
fn fault_34_while_the_projector_is_dead_lag_grows_with_the_head_and_a_reset_brings_it_back() {
    let sandbox = Sandbox::new();
    grant(&sandbox, "g0");
    let up = Up::start(&sandbox);
    up.wait_for(200);
    sql(
        &sandbox,
        "UPDATE checkpoints SET definition = 'version 0, zone UTC' WHERE projection = 'entries'",
    );
    for n in 1..=3_u32 {
        grant(&sandbox, &format!("g{n}"));
        let document = up.wait_for(503);
        assert_eq!(document["store"]["head"], n + 1);
        assert_eq!(up.of_entries("lag_events"), f64::from(n));
        assert!(up.of_entries("lag_seconds") > 0.0);
        assert_eq!(up.of_entries("refused"), 1.0);
    }
    eventually("the loop is stopped, and says why", || {
        let why = reasons(&up.ready().1).join(" ");
        let is_told = why.contains("loop projector is stopped") && why.contains("version 0");
        is_told.then_some(())
    });
    assert_eq!(up.metric("recoup_loop_up{loop=\"projector\"}"), 0.0);
    sandbox
        .line("project reset entries --reason upgraded")
        .ended(0)
        .says("caught_up", true);
    up.wait_for(200);
    grant(&sandbox, "g9");
    eventually("the loop applies again", || {
        let (is_up, lag) = (
            up.metric("recoup_loop_up{loop=\"projector\"}"),
            up.of_entries("lag_events"),
        );
        (is_up == 1.0 && lag == 0.0).then_some(())
    });
    assert!(up.metric("recoup_loop_restarts_total{loop=\"projector\"}") >= 1.0);
    sandbox.audited();
    up.end("INT");
}

/// Writing a checkpoint fails, as on a broken disk, and then it does not fail any more.
#[test]
fn fault_26_a_checkpoint_write_that_fails_is_not_the_last_one() {
    let sandbox = Sandbox::new();
    grant(&sandbox, "g1");
    let up = Up::start(&sandbox);
    up.wait_for(200);
    let (break_it, mend_it) = if sandbox.ledger.file().is_some() {
        (
            "CREATE TRIGGER broken BEFORE UPDATE ON checkpoints BEGIN SELECT RAISE(ABORT, 'injected'); END",
            "DROP TRIGGER broken",
        )
    } else {
        (
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'injected' USING ERRCODE = 'check_violation'; END $$;
            CREATE TRIGGER broken BEFORE UPDATE ON checkpoints FOR EACH ROW EXECUTE FUNCTION fail()",
            "DROP TRIGGER broken ON checkpoints",
        )
    };
    sql(&sandbox, break_it);
    grant(&sandbox, "g2");
    let document = up.wait_for(503);
    let why = reasons(&document);
    assert!(why[0].contains("injected"), "{why:?}");
    assert_eq!(up.of_entries("lag_events"), 1.0);
    sql(&sandbox, mend_it);
    up.wait_for(200);
    assert_eq!(up.of_entries("position"), 2.0);
    let (document, said) = up.end("TERM");
    assert!(document["restarts"].as_u64() >= Some(1), "{document}");
    assert_eq!(said.matches("a loop failed").count(), 1, "{said}");
    sandbox.audited();
}

#[test]
fn two_at_once_apply_each_event_once_and_either_may_end() {
    let sandbox = Sandbox::new();
    grant(&sandbox, "g0");
    let (one, other) = (Up::start(&sandbox), Up::start(&sandbox));
    one.wait_for(200);
    other.wait_for(200);
    let line = |n: u32| {
        format!(
            "{{\"op\":\"grant\",\"account\":\"a{}\",\"grant\":\"n{n}\",\"amount\":1}}\n",
            n % 7
        )
    };
    sandbox.write("grants.jsonl", (0..2_000).map(line).collect::<String>());
    sandbox
        .line("import grants.jsonl")
        .ended(0)
        .says("applied", 2_000);
    one.end("TERM");
    grant(&sandbox, "g1");
    eventually("the one that is left goes on", || {
        (other.of_entries("position") == 2_002.0).then_some(())
    });
    other.end("TERM");
    sandbox.audited();
}

/// It is told to end while it has much to do: what it has applied is whole, and the next one goes on from there.
#[test]
fn an_end_in_the_middle_of_work_loses_nothing() {
    let sandbox = Sandbox::new();
    let line = |n: u32| {
        format!("{{\"op\":\"grant\",\"account\":\"a\",\"grant\":\"n{n}\",\"amount\":1}}\n")
    };
    sandbox.write("grants.jsonl", (0..20_000).map(line).collect::<String>());
    sandbox.line("import grants.jsonl").ended(0);
    let (document, _) = Up::start(&sandbox).end("TERM");
    let loops = document["loops"].as_array().expect("a list");
    assert!(
        loops.iter().all(|one| one["state"] == "ended"),
        "{document}"
    );
    let up = Up::start(&sandbox);
    up.wait_for(200);
    up.end("INT");
    sandbox.audited();
    let listed = sandbox
        .line("account entries a --after 19999")
        .ended(0)
        .document();
    assert_eq!(listed["entries"][0]["balance"], 20_000);
}

/// Killed while it has much to do: nothing is half done, whenever that was, and the next one goes on from there.
#[test]
fn one_that_is_killed_in_the_middle_of_work_leaves_nothing_half_done() {
    const GRANTS: u64 = 10_000;
    let sandbox = Sandbox::new();
    let line = |n: u64| {
        format!("{{\"op\":\"grant\",\"account\":\"a\",\"grant\":\"n{n}\",\"amount\":1}}\n")
    };
    sandbox.write("grants.jsonl", (0..GRANTS).map(line).collect::<String>());
    sandbox.line("import grants.jsonl").ended(0);
    sandbox.line("project --once").ended(0);
    let mut in_the_middle = 0;
    for round in 1..=4 {
        sandbox.line("project reset entries --no-catch-up").ended(0);
        let up = Up::start(&sandbox);
        let position = || -> u64 {
            let sql = "SELECT position FROM checkpoints WHERE projection = 'entries'";
            let rows = sandbox.ledger.table(sql);
            rows.first()
                .map_or(0, |row| row[0].parse().expect("a number"))
        };
        eventually("some of it is done", || {
            (position() > round * 500).then_some(())
        });
        // At once, and not in peace.
        drop(up);
        in_the_middle += u32::from(position() < GRANTS);
        sandbox.audited();
    }
    assert!(in_the_middle > 0, "none was killed in the middle");
    let up = Up::start(&sandbox);
    up.wait_for(200);
    eventually("the last one goes on to the end", || {
        (up.of_entries("lag_events") == 0.0).then_some(())
    });
    up.end("TERM");
    sandbox.audited();
    let listed = sandbox
        .line("account entries a --after 9999")
        .ended(0)
        .document();
    assert_eq!(listed["entries"][0]["balance"], GRANTS);
}

#[test]
fn an_address_that_cannot_be_listened_on_is_refused() {
    let sandbox = Sandbox::new();
    let up = Up::start(&sandbox);
    let taken = sandbox
        .line(&format!("up --listen {}", up.address))
        .ended(1);
    let error = taken.document()["error"].to_string();
    assert!(
        error.contains(&up.address) && error.contains("in use"),
        "{error}"
    );
    for wrong in ["7070", "nowhere", "127.0.0.1:70700"] {
        sandbox.line(&format!("up --listen {wrong}")).ended(2);
    }
    up.end("TERM");
}

/// An event is appended while the process sleeps, and before it wakes another process begins a transaction and stands still in it: the event
/// cannot be applied, and everything still answers.
#[test]
fn a_stopped_writer_makes_it_fall_behind_but_not_fall_over() {
    let sandbox = Sandbox::new();
    grant(&sandbox, "g1");
    let up = Up::start_with(&sandbox, &["--busy-timeout-ms", "50"]);
    eventually("it has nothing to write", || {
        let success = up.ready().1["loops"][0]["last_success_age_seconds"].as_f64();
        success.filter(|_| up.of_entries("lag_events") == 0.0)
    });
    up.stop_between_transactions(&sandbox);
    grant(&sandbox, "g2");
    let mut holder = hold(&sandbox.ledger.url());
    holder.signal("STOP");
    up.process.signal("CONT");
    eventually("the loop says what it waits for", || {
        let error = up.ready().1["loops"][0]["error"].clone();
        error
            .as_str()
            .filter(|error| error.contains("unavailable"))
            .map(str::to_owned)
    });
    assert_eq!(up.of_entries("lag_events"), 1.0);
    assert_eq!(up.get("/healthz").0, 200);
    holder.signal("CONT");
    let mut stdin = holder.0.stdin.take().expect("it is piped");
    stdin.write_all(b"go on\n").expect("it reads");
    assert!(holder.ended().success());
    eventually("it goes on", || {
        (up.of_entries("lag_events") == 0.0).then_some(())
    });
    up.end("TERM");
    sandbox.audited();
}

/// A client has a connection and sends nothing.
#[test]
fn an_idle_client_does_not_hold_up_an_end() {
    let sandbox = Sandbox::new();
    let up = Up::start(&sandbox);
    let _idle = TcpStream::connect(&up.address).expect("it listens");
    up.wait_for(200);
    up.end("TERM");
}

#[test]
fn every_projection_and_loop_has_its_metrics_from_the_start() {
    let sandbox = Sandbox::new();
    let up = Up::start(&sandbox);
    up.wait_for(200);
    for projection in Projection::ALL {
        for name in ["position", "lag_events", "lag_seconds", "halted"] {
            let name = format!("recoup_projection_{name}{{projection=\"{projection}\"}}");
            assert_eq!(up.metric(&name), 0.0, "{name}");
        }
    }
    for name in [
        "recoup_store_head",
        "recoup_events_appended_total",
        "recoup_dead_letters_open",
    ] {
        assert_eq!(up.metric(name), 0.0, "{name}");
    }
    assert_eq!(up.metric("recoup_store_up"), 1.0);
    up.end("TERM");
}
