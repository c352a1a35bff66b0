//! `recoup project skip-figures`: moves account figures beside a log in KurrentDB past the one event that they are halted at.
//!
//! They guard charges: until somebody decides so, none is admitted. What the event moved is missing from them for good, and the audit says so.

use recoup::sql::Database;
use recoup::store::kurrentdb::KurrentStore;
use recoup::{Position, Reason};
use serde_json::json;

use super::By;
use crate::cli::answer::{Answer, usage};
use crate::cli::session::Session;
use crate::cli::values;
use crate::exit::Exit;

/// What to skip, and why.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The event that they are halted at. Another one is refused. Without it, the event that they are halted at now.
    #[arg(long, value_name = "POSITION", value_parser = clap::value_parser!(i64).range(1..))]
    position: Option<i64>,
    /// Why; it is kept, and the audit shows it.
    #[arg(long, value_name = "TEXT", value_parser = values::why_skipped)]
    reason: Reason,
    #[command(flatten)]
    by: By,
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let Database::Kurrent(store) = &session.database else {
        return Err(usage(
            "account figures of an SQL store are written by the append itself, and are never halted",
        ));
    };
    // What this build can fold is not skipped; that it cannot is what is looked for.
    let settled = store.settle_figures().await;
    let Some((position, why)) = store.halted().await? else {
        settled?;
        return Ok(refused(
            "not_halted",
            "no event stands in the way of account figures: nothing was skipped".to_owned(),
        ));
    };
    let asked = args.position.map_or(position, Position::new);
    let by = args.by.name();
    if asked != position || !store.skip_figures(asked, &args.reason, &by).await? {
        let message = format!(
            "account figures are halted at event {position}, not at {asked}: nothing was skipped; in their way: {why}"
        );
        return Ok(refused("halted_elsewhere", message));
    }
    Ok(skipped(store, (position, &why), &args.reason).await)
}

async fn skipped(
    store: &KurrentStore,
    (position, why): (Position, &str),
    reason: &Reason,
) -> Answer {
    let next = store
        .settle_figures()
        .await
        .err()
        .map(|error| error.to_string());
    let document = json!({
        "outcome": "applied",
        "projection": "account_state",
        "position": position.get(),
        "was_halted": why,
        "reason": reason.as_str(),
        "halted": next,
    });
    let mut text = format!("account figures: event {position} is skipped; they lack what it moved");
    if let Some(next) = next {
        text.push_str(&format!("\nin their way now: {next}"));
    }
    Answer::new(Exit::Done, document, text)
}

fn refused(code: &str, message: String) -> Answer {
    let document = json!({
        "outcome": "rejected",
        "code": code,
        "projection": "account_state",
        "message": message,
    });
    Answer::new(Exit::Refused, document, message)
}
