//! Killed at random moments: nothing acknowledged is lost, nothing is applied twice.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::children::{Random, Running};
use crate::driver::{ACCOUNTS, COST, JOBS, drive};
use crate::log::{Life, lives};
use crate::sandbox::Sandbox;

/// How often all processes are killed; `scripts/soak` asks for more.
fn rounds() -> u64 {
    std::env::var("RECOUP_SOAK_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(10)
}

fn postpaid(sandbox: &Sandbox) {
    for account in 0..ACCOUNTS {
        sandbox
            .line(&format!("account limit --account a{account} --floor none"))
            .ended(0);
    }
}

/// Commands on jobs, every one of which the drivers of this scope send too.
fn file(scope: &str, jobs: u64) -> String {
    let mut text = String::new();
    for number in 0..jobs {
        let (job, account) = (format!("{scope}j{number}"), number % ACCOUNTS);
        let _ = writeln!(
            text,
            r#"{{"op":"charge","job":"{job}","account":"a{account}","cost":{COST},"kind":"k"}}"#
        );
        let _ = writeln!(text, r#"{{"op":"fail","job":"{job}","attempt":1}}"#);
        if number % 3 > 0 {
            let _ = writeln!(text, r#"{{"op":"succeed","job":"{job}","attempt":1}}"#);
        }
    }
    text
}

fn import(sandbox: &Sandbox, name: &str) -> Running {
    let mut command = sandbox.command(&["--json", "import", name]);
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    Running(command.spawn().expect("the binary can be run"))
}

/// What drivers were told, by step and job; a line that a kill cut short was not told.
fn told(files: &[PathBuf]) -> HashMap<(String, String), Vec<String>> {
    let mut told: HashMap<_, Vec<String>> = HashMap::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [step, job, outcome] = words[..] else {
                panic!("no answer: {line:?}")
            };
            told.entry((step.to_owned(), job.to_owned()))
                .or_default()
                .push(outcome.to_owned());
        }
    }
    told
}

#[test]
fn killed_processes_lose_nothing_and_apply_nothing_twice() {
    let sandbox = Sandbox::new();
    sandbox.line("init").ended(0);
    postpaid(&sandbox);
    let mut random = Random(std::process::id().into());
    let seed = random.0;
    let mut answers = Vec::new();
    for round in 0..rounds() {
        let (scope, commands) = (format!("r{round}"), format!("commands-{round}.jsonl"));
        sandbox.write(&commands, file(&scope, JOBS));
        let mut children = vec![import(&sandbox, &commands)];
        for driver in 0..2 {
            let file = sandbox.path(&format!("answers-{round}-{driver}"));
            children.push(drive(
                &sandbox.ledger.url(),
                &file,
                &scope,
                random.below(u64::MAX),
            ));
            answers.push(file);
        }
        std::thread::sleep(Duration::from_millis(30 + random.below(300)));
        // In a random order, so that each is now and then alive while another one is dead.
        while !children.is_empty() {
            let at = random.below(children.len() as u64);
            drop(children.swap_remove(usize::try_from(at).expect("an index")));
            std::thread::sleep(Duration::from_millis(random.below(20)));
        }
    }
    check_answers(&told(&answers), &lives(&sandbox.ledger.url()), seed);
    sandbox.audited();
    for round in 0..rounds() {
        go_on(&sandbox, &format!("commands-{round}.jsonl"));
    }
    let audit = sandbox.audited();
    for round in 0..rounds() {
        sandbox
            .line(&format!("import commands-{round}.jsonl"))
            .says("applied", 0);
    }
    assert_eq!(
        sandbox.audited()["position"],
        audit["position"],
        "a file given again changes nothing"
    );
}

/// Imports a file again whose import was killed, over what the drivers did meanwhile.
fn go_on(sandbox: &Sandbox, name: &str) {
    let report = sandbox.line(&format!("import {name}")).document();
    let rejections = report["rejections"].as_array().expect("a list");
    assert!(
        report["error"].is_null() && rejections.iter().all(|row| row["code"] == "job_ended"),
        "{report}"
    );
}

fn check_answers(
    told: &HashMap<(String, String), Vec<String>>,
    lives: &HashMap<String, Life>,
    seed: u64,
) {
    let count = |outcome: &str| {
        told.values()
            .flatten()
            .filter(|told| *told == outcome)
            .count()
    };
    println!(
        "seed {seed}: {} answers, {} applied, {} jobs",
        told.values().map(Vec::len).sum::<usize>(),
        count("applied"),
        lives.len()
    );
    assert!(
        count("applied") > 100,
        "the processes got something done before they were killed"
    );
    assert_eq!(count("error"), 0, "seed {seed}");
    for (job, life) in lives {
        let once = [life.charged, life.refunded, life.delivered, life.reclaimed];
        assert!(
            once.iter().all(|times| *times <= 1) && life.charged == 1,
            "seed {seed}, {job}: {life:?}"
        );
    }
    for ((step, job), outcomes) in told {
        let applied = outcomes
            .iter()
            .filter(|outcome| *outcome == "applied")
            .count();
        assert!(
            applied <= 1,
            "seed {seed}: {step} {job} was applied {applied} times"
        );
        let life = lives.get(job).copied().unwrap_or_default();
        let is_there = outcomes
            .iter()
            .all(|outcome| match (step.as_str(), outcome.as_str()) {
                ("charge", _) => life.charged == 1,
                ("fail", "noted") | ("succeed", _) => life.delivered == 1,
                _ => life.failed > 0,
            });
        assert!(
            is_there,
            "seed {seed}: {step} {job} was answered {outcomes:?}, and the log has {life:?}"
        );
    }
}

#[test]
fn an_import_that_is_killed_again_and_again_ends_as_if_it_never_was() {
    let (killed, whole) = (Sandbox::new(), Sandbox::new());
    for sandbox in [&killed, &whole] {
        postpaid(sandbox);
        sandbox.write("commands.jsonl", file("", 3_000));
    }
    let mut random = Random(u64::from(std::process::id()) << 20);
    for _ in 0..6 {
        let child = import(&killed, "commands.jsonl");
        std::thread::sleep(Duration::from_millis(20 + random.below(60)));
        drop(child);
    }
    let report = killed.line("import commands.jsonl").ended(0).document();
    let at_once = whole.line("import commands.jsonl").ended(0).document();
    assert_eq!(
        (&report["lines"], &at_once["applied"]),
        (&json!(8_000), &json!(8_000)),
        "{report} {at_once}"
    );
    assert_eq!(lives(&killed.ledger.url()), lives(&whole.ledger.url()));
    let accounts =
        |sandbox: &Sandbox| -> Value { sandbox.line("account list").ended(0).document() };
    assert_eq!(accounts(&killed), accounts(&whole));
    assert_eq!(killed.audited()["events"], whole.audited()["events"]);
}
