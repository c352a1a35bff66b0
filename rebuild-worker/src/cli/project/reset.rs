//! `recoup project reset`: makes the rows of one projection anew, from the start of the log and by this build's definition.

use recoup::{Position, Reason};
use recoup_projections::{Projection, Projections};
use serde_json::json;

use super::{By, checkpoints_document, checkpoints_table, projection};
use crate::cli::answer::Answer;
use crate::cli::session::Session;
use crate::cli::values;
use crate::exit::Exit;

/// Which one, and why.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Which projection. Until it has caught up, its lists lack rows.
    #[arg(value_name = "NAME", value_parser = projection)]
    name: Projection,
    /// Why; it is kept.
    #[arg(long, value_name = "TEXT", value_parser = values::why_skipped)]
    reason: Option<Reason>,
    #[command(flatten)]
    by: By,
    /// Leave it at the start of the log, for a running projector to bring forward.
    #[arg(long)]
    no_catch_up: bool,
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let projections = Projections::open(session.database.clone()).await?;
    let why = (args.reason, args.by.name());
    let reset = projections.reset(args.name, why).await?;
    let is_caught_up = !args.no_catch_up && super::bring_forward(&projections).await;
    let checkpoints = projections.checkpoints().await?;
    let document = json!({
        "outcome": "applied",
        "projection": reset.projection.name(),
        "rows_removed": reset.rows,
        "was_at": reset.position.map(Position::get),
        "was_made_as": reset.definition,
        "caught_up": is_caught_up,
        "projections": checkpoints_document(&checkpoints),
    });
    let text = format!(
        "{}: {} rows removed{}\n\n{}",
        reset.projection,
        reset.rows,
        if is_caught_up { ", and made anew" } else { "" },
        checkpoints_table(&checkpoints)
    );
    Ok(Answer::new(Exit::Done, document, text))
}
