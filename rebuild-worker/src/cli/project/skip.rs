//! `recoup project skip`: moves a halted projection past the one event that it is halted at.
//!
//! The projections are brought forward first: what this build can apply is not skipped.

use recoup::{Position, Reason};
use recoup_projections::{Halt, Projection, Projections, Skip, SkipOutcome};
use serde_json::{Value, json};

use super::{By, checkpoints_document, checkpoints_table, halt_document, projection};
use crate::cli::answer::{Answer, complain};
use crate::cli::session::Session;
use crate::cli::values;
use crate::exit::Exit;

/// What to skip, and why.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Which projection.
    #[arg(value_name = "NAME", value_parser = projection, required_unless_present = "projection")]
    name: Option<Projection>,
    /// The same, as an option.
    #[arg(long, value_name = "NAME", value_parser = projection, conflicts_with = "name")]
    projection: Option<Projection>,
    /// The event that it is halted at, as `recoup project --once` shows it. Another one is refused, so that of two people who skip one
    /// halt the second skips nothing. Without it, the event that it is halted at now.
    #[arg(long, value_name = "POSITION", value_parser = clap::value_parser!(i64).range(1..))]
    position: Option<i64>,
    /// Why; it is kept, and the audit shows it.
    #[arg(long, value_name = "TEXT", value_parser = values::why_skipped)]
    reason: Reason,
    #[command(flatten)]
    by: By,
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let projection = args.name.or(args.projection);
    let projection = projection.expect("the parser wants one of the two");
    let projections = Projections::open(session.database.clone()).await?;
    super::bring_forward(&projections).await;
    let position = match args.position {
        Some(position) => Position::new(position),
        None => match halted_at(&projections, projection).await? {
            Some(halt) => halt.position,
            None => return Ok(not_halted(projection)),
        },
    };
    let why = (args.reason, args.by.name());
    match projections.skip(projection, position, why).await? {
        SkipOutcome::NotHalted => Ok(not_halted(projection)),
        SkipOutcome::HaltedElsewhere(halt) => Ok(halted_elsewhere(projection, position, &halt)),
        SkipOutcome::Skipped(skip) => {
            super::bring_forward(&projections).await;
            done(&projections, &skip).await
        }
    }
}

async fn halted_at(
    projections: &Projections,
    projection: Projection,
) -> anyhow::Result<Option<Halt>> {
    let checkpoints = projections.checkpoints().await?;
    let found = checkpoints
        .into_iter()
        .find(|at| at.projection == projection);
    Ok(found.and_then(|checkpoint| checkpoint.halted))
}

fn not_halted(projection: Projection) -> Answer {
    let message = format!("no event stands in the way of {projection}: nothing was skipped");
    refused("not_halted", projection, message, Value::Null)
}

fn halted_elsewhere(projection: Projection, asked: Position, halt: &Halt) -> Answer {
    let message = format!(
        "{projection} is halted at event {}, not at {asked}: nothing was skipped; in its way: {}",
        halt.position, halt.reason
    );
    refused("halted_elsewhere", projection, message, halt_document(halt))
}

fn refused(code: &str, projection: Projection, message: String, halted: Value) -> Answer {
    let document = json!({
        "outcome": "rejected",
        "code": code,
        "projection": projection.name(),
        "message": message,
        "halted": halted,
    });
    Answer::new(Exit::Refused, document, message)
}

async fn done(projections: &Projections, skip: &Skip) -> anyhow::Result<Answer> {
    let checkpoints = projections.checkpoints().await?;
    if let Some(halt) = checkpoints
        .iter()
        .find(|at| at.projection == skip.projection)
        .and_then(|checkpoint| checkpoint.halted.as_ref())
    {
        complain(&format!(
            "warning: {} is halted again, at event {}: {}",
            skip.projection, halt.position, halt.reason
        ));
    }
    let document = json!({
        "outcome": "applied",
        "projection": skip.projection.name(),
        "position": skip.position.get(),
        "last_position": skip.last_position.get(),
        "event_id": skip.event_id.map(|id| id.to_string()),
        "was_halted": skip.halted,
        "reason": skip.decision.reason.as_ref().map(Reason::as_str),
        "by": skip.decision.by,
        "at": skip.decision.at.to_string(),
        "projections": checkpoints_document(&checkpoints),
    });
    let text = format!(
        "{}: event {} is skipped; its rows are not the log's until `recoup project reset {}`\n\n{}",
        skip.projection,
        skip.position,
        skip.projection,
        checkpoints_table(&checkpoints)
    );
    Ok(Answer::new(Exit::Done, document, text))
}
