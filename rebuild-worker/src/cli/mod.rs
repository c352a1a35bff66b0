//! The command line: one file per verb, one answer per run.
//!
//! A verb gives an `Answer`: an exit code, a JSON document and the same as text. It is printed here and nowhere else, so that with
//! `--json` stdout holds exactly one document, whatever happens: an answer, a rejection, an error, wrong usage. Data goes to
//! stdout; progress, logs, warnings and errors to stderr.
//!
//! Verbs that read projections bring them to the head first (`fresh`), so that nobody has to know what a projector is.

mod account;
mod answer;
mod audit;
mod backup;
mod config;
mod contradictions;
mod dead_letters;
mod export;
mod fresh;
mod import;
mod init;
mod job;
mod outcome;
mod project;
mod rebuild;
mod session;
pub(crate) mod table;
mod up;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use self::answer::Answer;
use self::session::Global;
use crate::exit::Exit;
use crate::{bench, demo};

const NOTES: &str = "\
Exit codes: 0 done (also when it had been done before); 1 failed; 2 wrong usage; 3 rejected by a rule, or only noted;
4 violations found; 5 outcome unknown: repeat the command under the same --command-id.

An id that begins with a dash is written --job=-x, or behind -- where it is an argument of its own.
RUST_LOG chooses what is logged to stderr, such as RUST_LOG=recoup=debug.";

/// A credit ledger for metered jobs: charged once, refunded once, reclaimed once.
#[derive(Debug, Parser)]
#[command(name = "recoup", version, after_help = NOTES, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create an empty ledger. Any first use does so too, with the defaults.
    Init,
    /// Carry out a file of commands, one JSON object a line, which can be given again; or take over an exported log.
    Import(import::Args),
    /// Write the log as JSON lines.
    Export(export::Args),
    /// Copy an embedded ledger while it is used.
    Backup(backup::Args),
    /// Commands on jobs, and what became of them.
    #[command(subcommand)]
    Job(job::Verb),
    /// Credit, limits, balances, statements, usage.
    #[command(subcommand)]
    Account(account::Verb),
    /// Run everything in one process: the projector, health, readiness and metrics.
    Up(up::Args),
    /// Bring the projections to the head of the log, and keep them there; ways out when one is halted.
    Project(project::Args),
    /// Fold days again from the log, compare them with what is shown, and repair what differs.
    Rebuild(rebuild::Args),
    /// Signals that contradicted what had happened.
    #[command(subcommand)]
    Contradictions(contradictions::Verb),
    /// Jobs that ran out of attempts or time, and what is done with them.
    #[command(subcommand)]
    DeadLetters(dead_letters::Verb),
    /// Prove that the log is legal, and that every figure agrees with it.
    Audit,
    /// Show three simulated days with everything going wrong that can: in a file, or in a schema or streams of their own on the server of --store.
    Demo {
        /// Requests to use, as CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens; without it they are generated.
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
        /// Keep the ledger in this folder, which must be absent or empty.
        #[arg(long, value_name = "DIR")]
        keep: Option<PathBuf>,
    },
    /// Measure this machine.
    #[command(subcommand)]
    Bench(bench::Args),
}

/// Runs the command line `args` (the program's name first), prints its answer, and gives the exit code.
#[must_use]
pub fn main(args: Vec<OsString>) -> ExitCode {
    let json = answer::wants_json(&args);
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error, json).into(),
    };
    let json = cli.global.json;
    let answer = runtime().and_then(|runtime| {
        let answer = runtime.block_on(run(cli));
        // A blocked read of stdin or of a database must not keep a process that has its answer.
        runtime.shutdown_background();
        answer
    });
    match answer {
        Ok(answer) => answer.print(json).into(),
        Err(error) => answer::print_error(&error, json).into(),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    built.context("no threads for the work")
}

async fn run(cli: Cli) -> anyhow::Result<Answer> {
    let global = cli.global;
    match cli.verb {
        Verb::Init => init::run(&global).await,
        Verb::Import(args) => import::run(&global, args).await,
        Verb::Export(args) => export::run(&global, args).await,
        Verb::Backup(args) => backup::run(&global, args).await,
        Verb::Job(verb) => job::run(&global, verb).await,
        Verb::Account(verb) => account::run(&global, verb).await,
        Verb::Up(args) => up::run(&global, args).await,
        Verb::Project(args) => project::run(&global, args).await,
        Verb::Rebuild(args) => rebuild::run(&global, args).await,
        Verb::Contradictions(verb) => contradictions::run(&global, verb).await,
        Verb::DeadLetters(verb) => dead_letters::run(&global, verb).await,
        Verb::Audit => audit::run(&global).await,
        Verb::Demo { trace, keep } => {
            let verdict = demo::run(demo::Options {
                trace,
                place: global.place_of_demo(keep.is_some()).await?,
                keep,
                json: global.json,
            })
            .await?;
            Ok(Answer::printed(if verdict.is_clean() {
                Exit::Done
            } else {
                Exit::Violations
            }))
        }
        Verb::Bench(args) => {
            let report = bench::run(args, global.server()?).await?;
            Ok(Answer::new(Exit::Done, report.document(), report.text()))
        }
    }
}

/// Help, the version, or what is wrong with the arguments.
fn not_parsed(error: &clap::Error, json: bool) -> Exit {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp => Answer::text_only("help", &text).print(json),
        ErrorKind::DisplayVersion => Answer::text_only("version", &text).print(json),
        _ => {
            if json {
                answer::usage_document(&text).print_document();
            }
            // Nobody is left to tell if stderr is closed.
            let _ = error.print();
            Exit::Usage
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_declared_soundly() {
        Cli::command().debug_assert();
    }
}
