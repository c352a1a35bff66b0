//! Moves of whole ledgers that are killed in the middle, and given again.

use std::fmt::Write;
use std::fs;
use std::process::Stdio;

use crate::children::{Random, Running, eventually};
use crate::sandbox::{Run, Sandbox};

/// How many events the ledger of that name holds; 0 before there is one.
fn events(sandbox: &Sandbox, name: &str) -> u64 {
    let ledger = sandbox.other(name);
    let sql = "SELECT coalesce(max(position + events) - 1, 0) FROM appends";
    if let Some(file) = ledger.file() {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let connection = rusqlite::Connection::open_with_flags(file, flags);
        let count = connection
            .and_then(|connection| connection.query_row(sql, [], |row| row.get::<_, i64>(0)));
        return count.map_or(0, i64::unsigned_abs);
    }
    let is_there = ledger.table("SELECT to_regclass('appends') IS NOT NULL");
    if is_there[0][0] != "t" {
        return 0;
    }
    let count = ledger.table(sql);
    count[0][0].parse().expect("a number")
}

/// Runs `verb` on the ledger of that name, and kills it once that holds more than so many events. Gives whether it was in the middle.
fn kill_at((sandbox, verb, name): (&Sandbox, &str, &str), enough: u64) -> bool {
    let mut moving = start(sandbox, verb, name);
    eventually("events are stored", || {
        let has_ended = moving.0.try_wait().expect("it can be asked").is_some();
        (has_ended || events(sandbox, name) > enough).then_some(())
    });
    let is_running = moving.0.try_wait().expect("it can be asked").is_none();
    moving.signal("KILL");
    moving.ended();
    is_running
}

fn start(sandbox: &Sandbox, verb: &str, name: &str) -> Running {
    let line = format!("{} {verb}", sandbox.store(name));
    let mut command = sandbox.command(&line.split(' ').collect::<Vec<_>>());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("the binary can be run"))
}

fn run(sandbox: &Sandbox, verb: &str, name: &str) -> Run {
    sandbox.line(&format!("{} {verb}", sandbox.store(name)))
}

/// The events of a log, line by line, without the ledger's own id.
fn exported(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let log = format!("{name}.jsonl");
    run(sandbox, &format!("export {log}"), name).ended(0);
    let text = fs::read_to_string(sandbox.path(&log)).expect("it was written");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[1..lines.len() - 1].to_vec()
}

/// A past in which every third job is left open, every fifth line comes to nothing, and the last line, which comes to nothing, is the latest.
pub(crate) fn past(jobs: u64) -> String {
    let mut text = String::from(
        r#"{"op":"grant","account":"a","grant":"g","amount":1000000,"at":"2026-10-01T00:00:00Z"}"#,
    );
    text.push('\n');
    for number in 0..jobs {
        let (hour, minute) = (number / 60 % 24, number % 60);
        let at = format!(r#""at":"2026-10-02T{hour:02}:{minute:02}:00Z""#);
        let _ = writeln!(
            text,
            r#"{{"op":"charge","job":"j{number}","account":"a","cost":7,"kind":"k",{at}}}"#
        );
        if number % 3 > 0 {
            let _ = writeln!(
                text,
                r#"{{"op":"fail","job":"j{number}","attempt":1,{at}}}"#
            );
        }
        if number % 5 == 0 {
            let _ = writeln!(
                text,
                r#"{{"op":"charge","job":"big{number}","account":"a","cost":9000000,"kind":"k",{at}}}"#
            );
        }
    }
    text.push_str(
        r#"{"op":"charge","job":"big","account":"a","cost":9000000,"kind":"k","at":"2026-10-03T12:00:00Z"}"#,
    );
    text.push('\n');
    text
}

/// Killed while lines are carried out and while jobs are ended, the same file leads to the log that it leads to when nothing happens, to the byte and
/// the microsecond. Protection: ids derive from file and line, the instants come from the file, and what stands before the last stored instant is not decided again.
#[test]
fn a_backfill_that_is_killed_again_and_again_leads_to_the_same_log() {
    let sandbox = Sandbox::new();
    sandbox.write("past.jsonl", past(900));
    let import = "import past.jsonl --backfill --close";
    let done = run(&sandbox, import, "whole").ended(3).document();
    assert_eq!(done["backfill"]["jobs_ended"], 300);
    // A grant, three events for each failure, two for each job that its timer ended, and one for each charge.
    let stored = events(&sandbox, "whole");
    assert_eq!(stored, 1 + 900 + 3 * 600 + 2 * 300);
    let mut random = Random(7);
    let (mut in_the_middle, mut while_closing) = (0, 0);
    let before_closing = stored - 2 * 300;
    loop {
        let is = events(&sandbox, "killed");
        if is + 60 >= stored {
            break;
        }
        let enough = (is + 1 + random.below(250)).min(stored - 30);
        if kill_at((&sandbox, import, "killed"), enough) {
            in_the_middle += 1;
            while_closing += u32::from(enough > before_closing);
        }
    }
    assert!(in_the_middle > 1, "none was killed in the middle");
    assert!(while_closing > 0, "none was killed while it closed");
    let code = run(&sandbox, import, "killed").code;
    assert!(matches!(code, Some(0 | 3)), "{code:?}");
    assert_eq!(exported(&sandbox, "whole"), exported(&sandbox, "killed"));
    run(&sandbox, "audit", "killed")
        .ended(0)
        .says("violations", 0);
}

/// A log is there whole or not at all, and is taken when it is given again.
#[test]
fn a_log_whose_import_is_killed_is_taken_the_next_time() {
    let sandbox = Sandbox::new();
    sandbox.write("past.jsonl", past(900));
    run(&sandbox, "import past.jsonl --backfill --close", "whole").ended(3);
    let taken = exported(&sandbox, "whole");
    let mut random = Random(11);
    let import = "import whole.jsonl";
    for _ in 0..8 {
        let mut moving = start(&sandbox, import, "new");
        std::thread::sleep(std::time::Duration::from_millis(random.below(60)));
        moving.signal("KILL");
        moving.ended();
        let stored = events(&sandbox, "new");
        assert!(
            stored == 0 || stored == taken.len() as u64,
            "{stored} events"
        );
        if stored > 0 {
            break;
        }
    }
    if events(&sandbox, "new") == 0 {
        run(&sandbox, import, "new").ended(0);
    }
    assert_eq!(exported(&sandbox, "new"), taken);
    run(&sandbox, "audit", "new").ended(0).says("violations", 0);
}
