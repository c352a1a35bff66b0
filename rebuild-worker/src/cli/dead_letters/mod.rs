//! `recoup dead-letters`: jobs that ran out of attempts or time, and what people do with them.
//!
//! `list` reads the projection of that name, brought to the head first; `show` folds the job's stream; `redrive` and `discard` ([`moving`]) work off
//! a selection that is taken once.

mod list;
mod moving;

use clap::Subcommand;
use recoup::{AccountId, JobId, Kind, Rejection, Timestamp};
use recoup_projections::DeadLetterFilter;
use serde_json::json;

use super::answer::Answer;
use super::job;
use super::session::{Global, Session};
use super::table::printable;
use super::values::Paging;
use crate::dead_letters::{Move, last_death};
use crate::exit::Exit;

/// What to do, or to ask.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Oldest first.
    List {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        paging: Paging,
    },
    /// Cause, last failure, and the whole life of the job, freshly read.
    Show {
        /// Which job.
        job: JobId,
    },
    /// Give jobs another round of attempts.
    Redrive(moving::Args),
    /// Give jobs up for good.
    Discard(moving::Args),
}

/// Which dead letters.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Filter {
    /// Of this account only.
    #[arg(long, value_name = "ID")]
    account: Option<AccountId>,
    /// Of this kind only.
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,
    /// Only those that became one before this instant, such as 2026-11-29T10:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    before: Option<Timestamp>,
}

impl Filter {
    fn is_given(&self) -> bool {
        self.account.is_some() || self.kind.is_some() || self.before.is_some()
    }
}

impl From<Filter> for DeadLetterFilter {
    fn from(filter: Filter) -> Self {
        let Filter {
            account,
            kind,
            before,
        } = filter;
        Self {
            account,
            kind,
            before,
        }
    }
}

pub(super) async fn run(global: &Global, verb: Verb) -> anyhow::Result<Answer> {
    let session = global.open().await?;
    match verb {
        Verb::List { filter, paging } => list::run(&session, filter.into(), paging).await,
        Verb::Show { job } => show(&session, &job).await,
        Verb::Redrive(args) => moving::run(&session, Move::Redrive, args).await,
        Verb::Discard(args) => moving::run(&session, Move::Discard, args).await,
    }
}

async fn show(session: &Session, id: &JobId) -> anyhow::Result<Answer> {
    let (folded, history) = session.ledger.show(id).await?;
    let state = folded.recorded().map(|recorded| recorded.work.name());
    let is_dead = folded
        .recorded()
        .is_some_and(|recorded| recorded.work == recoup::job::Work::DeadLettered);
    match (state, last_death(&history)) {
        (Some(_), Some(death)) if is_dead => {
            let (cause, reason) = (death.cause.name(), death.reason);
            let said = reason.as_deref().unwrap_or("nothing is known");
            let told = format!("dead letter: {cause}; last failure: {}", printable(said));
            let answer = job::show_job(session, id).await?;
            Ok(answer.with(&[("cause", json!(cause)), ("reason", json!(reason))], &told))
        }
        (Some(state), _) => {
            let rejection = Rejection::NotDeadLettered { state };
            let document = json!({
                "job": id.as_str(), "state": state, "outcome": "rejected",
                "code": rejection.code(), "error": rejection.to_string(),
            });
            let text = format!("{id}: {rejection}");
            Ok(Answer::new(Exit::Refused, document, text))
        }
        (None, _) => job::show_job(session, id).await,
    }
}
