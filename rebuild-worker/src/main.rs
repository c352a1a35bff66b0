//! The binary `recoup`. The only place that installs a tracing subscriber: logs go to stderr, `RUST_LOG` chooses, warnings by default.

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // What KurrentDB's client logs at every try is told once, where it matters.
    let usual = || EnvFilter::new("warn,kurrentdb=off");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| usual());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    recoup_rebuild_worker::cli::main(std::env::args_os().collect())
}
