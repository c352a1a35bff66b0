//! `recoup job`: commands on jobs ([`command`]), one job's life ([`show`], [`event`]), lists of jobs ([`list`]),
//! due jobs for a worker ([`claim`]).
//!
//! `show` folds the job's stream, freshly read, and never lags; `list` reads the projection `jobs`.

mod claim;
mod command;
mod event;
mod list;
mod show;

use clap::Subcommand;
use recoup::JobId;

use super::answer::Answer;
use super::session::{Global, Session};

/// What to do, or to ask.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Take a job on and charge its cost.
    Charge(command::Charge),
    /// Begin the next attempt.
    Start(command::Start),
    /// Start due jobs for a worker: of several that claim, each job goes to one.
    Claim(claim::Claim),
    /// A running attempt is alive: renew its lease.
    Extend(command::Extend),
    /// An attempt failed: refund, and perhaps another attempt.
    Fail(command::Fail),
    /// An attempt succeeded. Hand its result over only if the answer is applied or already_applied (exit code 0).
    Succeed(command::Succeed),
    /// Call the job off.
    Cancel(command::End),
    /// Give a dead letter another round.
    Redrive(command::End),
    /// Give a dead letter up for good.
    Discard(command::End),
    /// State, entries and every event of a job, freshly read.
    Show {
        /// Which job.
        job: JobId,
    },
    /// Jobs by account, kind and state.
    List(list::Args),
}

pub(super) async fn run(global: &Global, verb: Verb) -> anyhow::Result<Answer> {
    let session = global.open().await?;
    match verb {
        Verb::Charge(args) => args.run(&session).await,
        Verb::Start(args) => args.run(&session).await,
        Verb::Claim(args) => claim::run(&session, args).await,
        Verb::Extend(args) => args.run(&session).await,
        Verb::Fail(args) => args.run(&session).await,
        Verb::Succeed(args) => args.run(&session).await,
        Verb::Cancel(args) => args.run(&session, command::End::cancel).await,
        Verb::Redrive(args) => args.run(&session, command::End::redrive).await,
        Verb::Discard(args) => args.run(&session, command::End::discard).await,
        Verb::Show { job } => show::run(&session, &job).await,
        Verb::List(args) => list::run(&session, args).await,
    }
}

/// A job's life, freshly read, for a verb that adds to it.
pub(super) async fn show_job(session: &Session, job: &JobId) -> anyhow::Result<Answer> {
    show::run(session, job).await
}
