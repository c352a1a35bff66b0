//! A server of a test's own, which it may crash.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use recoup::store::fresh::backend;

/// Whether tests over PostgreSQL are asked for; says so if not.
pub(crate) fn is_wanted() -> bool {
    let is_wanted = backend() == "postgres";
    if !is_wanted {
        eprintln!("skipped: for RECOUP_TEST_BACKEND=postgres");
    }
    is_wanted
}

/// Where the suites run now, if that is not where they were built.
fn script() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.join("../scripts/postgres")
}

pub(crate) struct Server {
    folder: tempfile::TempDir,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("recoup-server-")
            .tempdir_in("/var/tmp")
            .expect("a temporary folder");
        let mut server = Self {
            folder,
            url: String::new(),
        };
        server.url = server.script("start");
        server
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn end_at_once(&self) {
        self.script("crash");
    }

    /// Lets it recover.
    pub(crate) fn recover(&self) {
        assert_eq!(self.script("start"), self.url, "it is found again");
    }

    fn script(&self, verb: &str) -> String {
        let script = script();
        let output = Command::new(script)
            .arg(verb)
            .env("RECOUP_POSTGRES_DIR", self.dir())
            .env("RECOUP_POSTGRES_OPTIONS", "-c fsync=off")
            .stdin(Stdio::null())
            .output()
            .expect("it can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{verb}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Where it stores.
    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let script = script();
        let removed = Command::new(script)
            .arg("remove")
            .env("RECOUP_POSTGRES_DIR", self.dir())
            .status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("a server was left behind in {}", self.dir().display());
        }
    }
}
