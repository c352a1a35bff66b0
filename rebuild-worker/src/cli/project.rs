//! `recoup project`: applies the log to every projection, once to the head (`--once`), or on and on until it is told to stop.
//!
//! SIGINT and SIGTERM end it between two batches; a batch and its checkpoint commit together, so that a kill loses nothing either.

use std::io::IsTerminal;

use anyhow::Context;
use recoup::EventStore;
use recoup_projections::{Checkpoint, Projections};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, complain};
use super::session::{Global, Session};
use super::table::{Column, table};
use crate::exit::Exit;

/// How long to run.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Stop at the head of the log, instead of waiting for more.
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    let session = global.open().await?;
    let projections = Projections::open(session.store.clone()).await?;
    if args.once {
        projections.catch_up().await?;
    } else {
        follow(&projections).await?;
    }
    answer(&session, &projections).await
}

async fn follow(projections: &Projections) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("no handler for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("no handler for SIGTERM")?;
    if std::io::stderr().is_terminal() {
        complain("following the log; interrupt to stop");
    }
    let stop = CancellationToken::new();
    let following = projections.follow(stop.clone());
    tokio::pin!(following);
    tokio::select! {
        ended = &mut following => return Ok(ended?),
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    stop.cancel();
    Ok(following.await?)
}

async fn answer(session: &Session, projections: &Projections) -> anyhow::Result<Answer> {
    let checkpoints = projections.checkpoints().await?;
    let head = session.store.head().await?;
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
        "projections": checkpoints.iter().map(checkpoint_document).collect::<Vec<_>>(),
    });
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
    let exit = if is_halted { Exit::Failed } else { Exit::Done };
    Ok(Answer::new(exit, document, table(&columns, rows)))
}

fn checkpoint_document(checkpoint: &Checkpoint) -> Value {
    let halted = checkpoint.halted.as_ref();
    json!({
        "projection": checkpoint.projection.name(),
        "position": checkpoint.position.get(),
        "lag_events": checkpoint.lag_events,
        "retired": checkpoint.retired,
        "halted": halted.map(|halt| json!({ "position": halt.position.get(), "reason": halt.reason })),
    })
}
