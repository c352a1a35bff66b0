//! A ledger that moves from a file to a server, and back: in the log form, everything that is in it.

use std::process::Stdio;

use recoup::store::fresh::{Fresh, backend};

use crate::children::{Running, eventually};
use crate::moved::past;
use crate::sandbox::Sandbox;

/// Every table that a ledger moves with or that follows from its log, and the order of its rows.
const TABLES: [(&str, &str); 9] = [
    ("appends", "position"),
    ("account_state", "account"),
    ("account_month", "account, month"),
    ("entries", "position"),
    ("daily_usage", "account, day, kind"),
    ("jobs", "job"),
    ("contradictions", "position"),
    ("due", "job"),
    ("dead_letters", "position"),
];

/// A sandbox, and a file with a past of some days in it, and a present with every kind of entry; none, and said so, where there is no server to move to.
fn filled() -> Option<(Sandbox, Fresh)> {
    if backend() != "postgres" {
        eprintln!("skipped: for RECOUP_TEST_BACKEND=postgres");
        return None;
    }
    let sandbox = Sandbox::new();
    let file = Fresh::at(sandbox.path("from.db"));
    let run = |line: &str| sandbox.line(&format!("--store {} {line}", file.url()));
    sandbox.write("past.jsonl", past(900));
    run("--zone Asia/Seoul --scale 2 import past.jsonl --backfill --close").ended(3);
    let present = r#"{"op":"grant","account":"ä+b","grant":"g \"1\"","amount":1000}
{"op":"limit","account":"ä+b","monthly_cap":500,"floor":-10}
{"op":"charge","job":"j/1","account":"ä+b","cost":40,"kind":"video"}
{"op":"fail","job":"j/1","attempt":1,"reason":"gave up at 30 s: \u0001 \u00e9"}
{"op":"succeed","job":"j/1","attempt":1,"result":"s3://out/1"}
{"op":"fail","job":"j/1","attempt":1}
{"op":"charge","job":"j/2","account":"ä+b","cost":7,"kind":"text","policy":"claimed"}
{"op":"start","job":"j/2","worker":"w"}
{"op":"charge","job":"j/3","account":"ä+b","cost":7,"kind":"text","policy":"claimed"}
{"op":"start","job":"j/3","worker":"w"}
{"op":"fail","job":"j/3","attempt":1}
{"op":"adjust","account":"ä+b","adjustment":"x","amount":-5,"reason":"a correction","job":"j/2"}
"#;
    sandbox.write("present.jsonl", present);
    let policies = "[kind.text]\npolicy = \"claimed\"\ncap = 1\n";
    sandbox.write("policies.toml", policies);
    // The failure behind the success is noted only.
    run("--config policies.toml import present.jsonl").ended(3);
    run("project --once").ended(0);
    run("export log.jsonl").ended(0);
    Some((sandbox, file))
}

/// Compares both, row by row, and audits the second one.
fn are_equal(sandbox: &Sandbox, from: &Fresh, to: &Fresh) {
    let run = |line: &str| sandbox.line(&format!("--store {} {line}", to.url()));
    run("project --once").ended(0);
    for (table, order) in TABLES {
        let sql = format!("SELECT * FROM {table} ORDER BY {order}");
        let (one, other) = (from.table(&sql), to.table(&sql));
        assert!(!one.is_empty(), "{table} is compared with nothing in it");
        assert_eq!(one.len(), other.len(), "rows of {table}");
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one, other, "{table}");
        }
    }
    run("audit").ended(0).says("violations", 0);
}

#[test]
fn a_ledger_moves_from_a_file_to_a_server_and_back_with_every_row() {
    let Some((sandbox, file)) = filled() else {
        return;
    };
    sandbox.line("import log.jsonl").ended(0);
    are_equal(&sandbox, &file, &sandbox.ledger);

    sandbox.line("export again.jsonl").ended(0);
    let back = Fresh::at(sandbox.path("back.db"));
    sandbox
        .line(&format!("--store {} import again.jsonl", back.url()))
        .ended(0);
    are_equal(&sandbox, &sandbox.ledger, &back);
    are_equal(&sandbox, &file, &back);
}

/// Interleaving: the process is killed while its transaction has written events; the server ends that in its own time. Given again, the log is taken, whole.
#[test]
fn a_move_to_a_server_that_is_killed_in_the_middle_is_done_again() {
    let Some((sandbox, file)) = filled() else {
        return;
    };
    let writes = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE c.relname = 'appends' AND c.relnamespace = current_schema()::regnamespace AND l.mode = 'RowExclusiveLock'";
    let is_there = "SELECT to_regclass('appends') IS NOT NULL";
    let mut in_the_middle = 0;
    for round in 1..=5 {
        let to = sandbox.other(&format!("to-{round}"));
        let import = format!("{} import log.jsonl", sandbox.store(&format!("to-{round}")));
        let mut command = sandbox.command(&import.split(' ').collect::<Vec<_>>());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut moving = Running(command.spawn().expect("the binary can be run"));
        eventually("its transaction has written", || {
            let has_ended = moving.0.try_wait().expect("it can be asked").is_some();
            let has_written = to.table(is_there)[0][0] == "t" && to.table(writes)[0][0] != "0";
            (has_ended || has_written).then_some(())
        });
        moving.signal("KILL");
        moving.ended();
        eventually("the server has ended its session", || {
            (to.table(writes)[0][0] == "0").then_some(())
        });
        if to.table("SELECT count(*) FROM appends")[0][0] == "0" {
            in_the_middle += 1;
            sandbox.line(&import).ended(0);
        }
        are_equal(&sandbox, &file, &to);
    }
    assert!(in_the_middle > 0, "none was killed in the middle");
}
