//! The binary, run as scripts and operators run it: every verb, its exit codes and its keys.

#[path = "../sandbox/mod.rs"]
mod sandbox;

use std::ffi::OsStr;
use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use self::sandbox::{Run, Sandbox};

mod bad_input;
mod configuration;
mod dead_letters;
mod ids;
mod import;
mod log;
mod moves;
mod outcomes;
mod tls;
mod verbs;
mod ways_out;

impl Sandbox {
    /// Sets a variable for every run to come.
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Whether there is a ledger.
    fn has_ledger(&self) -> bool {
        match self.ledger.file() {
            Some(file) => file.exists(),
            None => {
                self.ledger
                    .table("SELECT to_regclass('ledger') IS NOT NULL")[0][0]
                    == "t"
            }
        }
    }

    /// Imports a text.
    fn import(&self, text: impl AsRef<[u8]>) -> Run {
        self.write("import.jsonl", text);
        self.run(&["import", "import.jsonl"])
    }

    /// Runs with `--json` in front and a text on stdin.
    fn pipe<S: AsRef<OsStr>>(&self, args: &[S], text: &str) -> Run {
        let mut command = self.command(&["--json"]);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be run");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(text.as_bytes()).expect("it reads");
        drop(stdin);
        Run::of(child.wait_with_output().expect("it ends"))
    }
}

/// Wants these keys, among others.
#[track_caller]
fn has_keys(value: &Value, expected: &str) {
    let found = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    for key in expected.split_whitespace() {
        assert!(found.contains_key(key), "{key} is missing in {value}");
    }
}
