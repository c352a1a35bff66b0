//! `recoup project move-figures`: makes the database of `--db` the one that keeps account figures beside a log in KurrentDB.
//!
//! The log names one database, so that two cannot each admit charges without what the other has reserved. It is moved when that one is lost or given up; the
//! figures are folded anew from the log.

use recoup::Reason;
use serde_json::json;

use super::By;
use crate::cli::answer::Answer;
use crate::cli::session::Global;
use crate::cli::values;
use crate::exit::Exit;

/// Why.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Why; it is kept in the log.
    #[arg(long, value_name = "TEXT", value_parser = values::why_skipped)]
    reason: Reason,
    #[command(flatten)]
    by: By,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    let is_moved = global.move_figures(&args.reason, &args.by.name()).await?;
    let (outcome, text) = if is_moved {
        (
            "applied",
            "the log names this database as the one that keeps its account figures from now on",
        )
    } else {
        (
            "already_applied",
            "this database keeps the account figures already",
        )
    };
    let document = json!({ "outcome": outcome, "reason": args.reason.as_str() });
    Ok(Answer::new(Exit::Done, document, text.to_owned()))
}
