//! `recoup dead-letters redrive` and `discard`: jobs that are named, or a selection of all of them as of one position.
//!
//! A run that was interrupted is given again as it was, and finishes the rest. A job that a rule refuses is reported with its code, and
//! the run goes on; it ends where the store does not answer.

use anyhow::Context;
use recoup::{JobId, Reason, Rejection};
use recoup_projections::Projection;
use serde_json::{Value, json};

use super::Filter;
use crate::cli::answer::{Answer, usage};
use crate::cli::fresh::Fresh;
use crate::cli::outcome::explain;
use crate::cli::session::Session;
use crate::cli::table::counted;
use crate::cli::values::stated_why;
use crate::dead_letters::{Letter, Move, Moved, carry_out, named, select, try_out};
use crate::exit::{Exit, classify};

/// Which dead letters to move, and why.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Which jobs.
    #[arg(value_name = "ID", conflicts_with = "all")]
    jobs: Vec<JobId>,
    /// All of them, or all that the other options select.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    /// The most jobs to move, the oldest dead letters first.
    #[arg(long, value_name = "JOBS")]
    limit: Option<usize>,
    /// Say what would happen, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Why: it is kept in each job's events.
    #[arg(long, value_name = "TEXT", value_parser = stated_why)]
    reason: Reason,
}

/// The selection: what to move, and what was named and cannot be.
struct Selection {
    letters: Vec<Letter>,
    refused: Vec<(JobId, Rejection)>,
}

pub(super) async fn run(session: &Session, to: Move, args: Args) -> anyhow::Result<Answer> {
    if args.jobs.is_empty() && !args.all {
        return Err(usage("dead letters are named by ID, or selected by --all"));
    }
    if !args.jobs.is_empty() && args.filter.is_given() {
        return Err(usage("--account, --kind and --before select of --all"));
    }
    let selection = selection(session, &args).await?;
    let selected = selection.letters.len() + selection.refused.len();
    let (ledger, order) = (&session.ledger, (to, &args.reason));
    let mut moved = if args.dry_run {
        try_out(ledger, &selection.letters, order).await
    } else {
        carry_out(ledger, &selection.letters, order, |done| {
            tracing::info!(done, selected, verb = to.name(), "dead letters are moved");
        })
        .await
    };
    moved.rejections.splice(0..0, selection.refused);
    Ok(answer(session, (to, args.dry_run, selected), moved))
}

async fn selection(session: &Session, args: &Args) -> anyhow::Result<Selection> {
    let (mut letters, mut refused) = (Vec::new(), Vec::new());
    if args.all {
        let fresh = Fresh::read(session, Projection::DeadLetters).await?;
        let filter = args.filter.clone().into();
        letters = select(&fresh.projections, &filter, args.limit).await?;
    }
    for job in &args.jobs {
        let found = named(&session.ledger, job).await;
        match found.with_context(|| format!("job {job}"))? {
            Ok(letter) if letters.contains(&letter) => {}
            Ok(letter) => letters.push(letter),
            Err(rejection) => refused.push((job.clone(), rejection)),
        }
    }
    letters.sort_unstable_by_key(|letter| letter.position);
    letters.truncate(args.limit.unwrap_or(usize::MAX));
    Ok(Selection { letters, refused })
}

fn answer(
    session: &Session,
    (to, is_dry_run, selected): (Move, bool, usize),
    moved: Moved,
) -> Answer {
    let rejected = moved.rejections.len();
    let rejections: Vec<Value> = moved
        .rejections
        .iter()
        .map(|(job, rejection)| {
            let message = explain(rejection, session.scale);
            json!({ "job": job.as_str(), "code": rejection.code(), "message": message })
        })
        .collect();
    let mut exit = if rejected == 0 {
        Exit::Done
    } else {
        Exit::Refused
    };
    let mut failures = Vec::new();
    for (job, error) in moved.failures {
        let error = anyhow::Error::from(error);
        let (of_error, code) = classify(&error);
        // An outcome that nobody knows is what a script has to hear first.
        if exit != Exit::Unknown {
            exit = of_error;
        }
        failures.push(json!({ "job": job.as_str(), "code": code, "error": format!("{error:#}") }));
    }
    let done = if is_dry_run {
        "would be moved"
    } else {
        "moved"
    };
    let mut text = format!(
        "{}: {} selected, {} {done}, {} already, {} rejected",
        to.name(),
        counted(selected as u64, "dead letter"),
        moved.applied,
        moved.already_applied,
        rejected
    );
    for row in &rejections {
        let (job, message) = (row["job"].as_str(), row["message"].as_str());
        text = format!(
            "{text}\n{}: {}",
            job.unwrap_or_default(),
            message.unwrap_or_default()
        );
    }
    for row in &failures {
        text = format!("{text}\n{}", row["error"].as_str().unwrap_or_default());
    }
    if !failures.is_empty() {
        text = format!("{text}\ngiven again, the same command does the rest");
    }
    let document = json!({
        "verb": to.name(),
        "selected": selected,
        "applied": moved.applied,
        "already_applied": moved.already_applied,
        "rejected": rejected,
        "rejections": rejections,
        "failures": failures,
        "dry_run": is_dry_run,
    });
    Answer::new(exit, document, text)
}
