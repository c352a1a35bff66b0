//! `recoup project`: applies the log to every projection, once to the head (`--once`), or on and on until it is told to stop.
//!
//! SIGINT and SIGTERM end it between two batches; a batch and its checkpoint commit together, so that a kill loses nothing either.
//!
//! `project skip` and `project reset` are ways out for a projection that is halted, or whose rows another build made. Both are recorded.

mod move_figures;
mod reset;
mod skip;
mod skip_figures;

use std::io::IsTerminal;

use recoup::EventStore;
use recoup_projections::{Checkpoint, Halt, Projection, Projections};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, complain};
use super::session::{Global, Session};
use super::table::{Column, table};
use crate::exit::Exit;
use crate::signals::Signals;

/// How long to run, or which way out.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    /// Stop at the head of the log, instead of waiting for more.
    #[arg(long)]
    once: bool,
    #[command(subcommand)]
    way_out: Option<WayOut>,
}

#[derive(Debug, clap::Subcommand)]
enum WayOut {
    /// Move a halted projection past the one event that it is halted at, such as: project skip --projection jobs --position 812
    /// --reason "a trial type". Its rows lack that event, and the audit says so, until the projection is reset.
    Skip(skip::Args),
    /// Move account figures beside a log in KurrentDB past the one event that they are halted at: until then no charge is admitted. They lack it for good,
    /// and the audit says so.
    SkipFigures(skip_figures::Args),
    /// Make the database of --db the one that keeps account figures beside a log in KurrentDB, when the one before is lost or given up. End every process that has
    /// the ledger open first: what they have reserved for charges on their way is not known to the new one.
    MoveFigures(move_figures::Args),
    /// Make the rows of one projection anew, from the start of the log: also the way out when another build made them.
    Reset(reset::Args),
}

/// Who takes a way out.
#[derive(Debug, clap::Args)]
struct By {
    /// Who decided it; kept with the reason.
    #[arg(long, value_name = "WHO", env = "USER", hide_env_values = true)]
    by: Option<String>,
}

impl By {
    /// The name, at most 200 characters of it.
    fn name(self) -> String {
        let by = self.by.filter(|by| !by.trim().is_empty());
        let by = by.unwrap_or_else(|| "unknown".to_owned());
        by.chars().take(200).collect()
    }
}

fn projection(name: &str) -> Result<Projection, String> {
    Projection::parse(name).map_err(|error| error.to_string())
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    match args.way_out {
        Some(WayOut::Skip(args)) => return skip::run(&global.open().await?, args).await,
        Some(WayOut::SkipFigures(args)) => {
            return skip_figures::run(&global.open().await?, args).await;
        }
        Some(WayOut::Reset(args)) => return reset::run(&global.open().await?, args).await,
        Some(WayOut::MoveFigures(args)) => return move_figures::run(global, args).await,
        None => {}
    }
    let session = global.open().await?;
    let projections = Projections::open(session.database.clone()).await?;
    if args.once {
        projections.catch_up().await?;
    } else {
        follow(&projections).await?;
    }
    answer(&session, &projections).await
}

async fn follow(projections: &Projections) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    if std::io::stderr().is_terminal() {
        complain("following the log; interrupt to stop");
    }
    let stop = CancellationToken::new();
    let following = projections.follow(stop.clone());
    tokio::pin!(following);
    tokio::select! {
        ended = &mut following => return Ok(ended?),
        () = signals.next() => {}
    }
    stop.cancel();
    Ok(following.await?)
}

async fn answer(session: &Session, projections: &Projections) -> anyhow::Result<Answer> {
    let checkpoints = projections.checkpoints().await?;
    let head = session.database.head().await?;
    let is_halted = checkpoints
        .iter()
        .any(|checkpoint| checkpoint.halted.is_some());
    let position = checkpoints
        .iter()
        .map(|checkpoint| checkpoint.position)
        .min();
    let document = json!({
        "head": head.get(),
        "position": position.map(recoup::Position::get),
        "projections": checkpoints_document(&checkpoints),
    });
    let exit = if is_halted { Exit::Failed } else { Exit::Done };
    Ok(Answer::new(exit, document, checkpoints_table(&checkpoints)))
}

/// Brings the projections forward as far as they go. Gives false, and says why on stderr, if that failed.
async fn bring_forward(projections: &Projections) -> bool {
    match projections.catch_up().await {
        Ok(_) => true,
        Err(error) => {
            complain(&format!(
                "warning: the projections were not brought forward: {error}"
            ));
            false
        }
    }
}

fn checkpoints_table(checkpoints: &[Checkpoint]) -> String {
    let columns = [
        Column::Text("projection"),
        Column::Number("position"),
        Column::Number("behind"),
        Column::Text("halted"),
    ];
    let rows = checkpoints.iter().map(|checkpoint| {
        let halted = checkpoint.halted.as_ref();
        vec![
            checkpoint.projection.to_string(),
            checkpoint.position.to_string(),
            checkpoint.lag_events.to_string(),
            halted.map_or_else(String::new, |halt| {
                format!("at {}: {}", halt.position, halt.reason)
            }),
        ]
    });
    table(&columns, rows)
}

fn checkpoints_document(checkpoints: &[Checkpoint]) -> Value {
    checkpoints.iter().map(checkpoint_document).collect()
}

fn halt_document(halt: &Halt) -> Value {
    json!({ "position": halt.position.get(), "reason": halt.reason })
}

fn checkpoint_document(checkpoint: &Checkpoint) -> Value {
    let halted = checkpoint.halted.as_ref();
    json!({
        "projection": checkpoint.projection.name(),
        "position": checkpoint.position.get(),
        "lag_events": checkpoint.lag_events,
        "retired": checkpoint.retired,
        "halted": halted.map(halt_document),
    })
}
