//! The real binary in a folder of its own, with a ledger in whichever database the tests are run over, and what it said.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use recoup::store::fresh::{Fresh, backend};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with, in time, a ledger in it; or in a schema of its own.
pub(crate) struct Sandbox {
    /// The ledger, unless a run names another one.
    pub(crate) ledger: Fresh,
    /// Others, by name.
    others: Mutex<BTreeMap<String, Arc<Fresh>>>,
    folder: TempDir,
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Where the suites run now, if that is not where they were built.
fn binary() -> PathBuf {
    let there = std::env::var_os("CARGO_BIN_EXE_recoup");
    there.map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_recoup")),
        PathBuf::from,
    )
}

/// What one run came to.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

fn is_on_server() -> bool {
    backend() == "postgres"
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ledger, environment) = if is_on_server() {
            let ledger = Fresh::new();
            let store = ledger.url();
            (ledger, vec![("RECOUP_STORE", store)])
        } else {
            // Where it is by default.
            let file = folder.path().join("recoup-data/recoup.db");
            (Fresh::at(file), Vec::new())
        };
        Self {
            ledger,
            others: Mutex::default(),
            folder,
            environment,
        }
    }

    /// For what is about a file: none, and said so, where the tests are run over a server.
    pub(crate) fn on_file() -> Option<Self> {
        if is_on_server() {
            eprintln!("skipped: it is about a ledger's file");
            return None;
        }
        Some(Self::new())
    }

    /// Another ledger of the same kind, by a name of the test's.
    pub(crate) fn other(&self, name: &str) -> Arc<Fresh> {
        let make = || {
            Arc::new(if is_on_server() {
                Fresh::new()
            } else {
                Fresh::at(self.path(&format!("{name}.db")))
            })
        };
        let mut others = self.others.lock().expect("nobody panicked");
        Arc::clone(others.entry(name.to_owned()).or_insert_with(make))
    }

    /// The option that leads to it.
    pub(crate) fn store(&self, name: &str) -> String {
        format!("--store {}", self.other(name).url())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The ledger's file.
    pub(crate) fn file(&self) -> PathBuf {
        self.ledger.file().expect("it is one")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("the sandbox can be written to");
        path
    }

    /// A run that is not started yet.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(binary());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RECOUP_")) {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
            .env_remove("RUST_LOG")
            .current_dir(self.folder.path())
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs with these arguments, as they are.
    pub(crate) fn plain<S: AsRef<OsStr>>(&self, args: &[S]) -> Run {
        Run::of(self.command(args).output().expect("the binary can be run"))
    }

    /// Runs with `--json` in front.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Run {
        let mut all: Vec<&OsStr> = vec!["--json".as_ref()];
        all.extend(args.iter().map(AsRef::as_ref));
        self.plain(&all)
    }

    /// Runs the words of a line with `--json` in front.
    pub(crate) fn line(&self, line: &str) -> Run {
        self.run(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Audits, and wants no violation.
    pub(crate) fn audited(&self) -> Value {
        let audit = self.line("audit").ended(0).document();
        assert_eq!(audit["violations"], 0, "{audit}");
        audit
    }
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// Wants this exit code.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self
    }

    /// The one document of stdout.
    #[track_caller]
    pub(crate) fn document(&self) -> Value {
        let body = self.stdout.strip_suffix('\n').unwrap_or(&self.stdout);
        assert!(!body.contains('\n'), "more than one line: {body}");
        serde_json::from_str(body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {body:?} {}", self.stderr))
    }

    /// The document, of which `key` has the value `value`.
    #[track_caller]
    pub(crate) fn says(self, key: &str, value: impl Into<Value>) -> Value {
        let document = self.document();
        assert_eq!(document[key], value.into(), "{key} of {document}");
        document
    }
}
