//! `recoup job claim`: start due jobs for a worker.
//!
//! The projections are brought to the head first; the guarded start decides who gets what, however old the list is. The command ids of the starts are
//! made here and nowhere else: a claim is not repeated but made anew, and what nobody knows of is freed by its lease.

use recoup::{Claimed, Kind, Lease, WorkerId};
use recoup_projections::Projection;
use serde_json::{Value, json};

use crate::cli::answer::Answer;
use crate::cli::fresh::Fresh;
use crate::cli::session::Session;
use crate::cli::table::{Column, table};
use crate::cli::values;
use crate::exit::Exit;

/// What to claim, and for whom.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Claim {
    /// Of this kind only; may be given more than once. Without it every kind.
    #[arg(long, value_name = "KIND")]
    kind: Vec<Kind>,
    /// Who runs the attempts.
    #[arg(long, value_name = "ID")]
    worker: WorkerId,
    /// How long each may run without a sign of life, such as 60s; without it the job's policy says.
    #[arg(long, value_name = "DURATION", value_parser = values::lease)]
    lease: Option<Lease>,
    /// The most jobs to claim.
    #[arg(long, value_name = "JOBS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    limit: u16,
}

pub(super) async fn run(session: &Session, args: Claim) -> anyhow::Result<Answer> {
    let fresh = Fresh::read(session, Projection::Due).await?;
    let (due, limit) = (&fresh.projections, usize::from(args.limit));
    let claimed = session
        .ledger
        .claim(due, &args.kind, &args.worker, args.lease, limit)
        .await?;
    let document = json!({
        "worker": args.worker.as_str(),
        "claimed": claimed.iter().map(document).collect::<Vec<_>>(),
    });
    if claimed.is_empty() {
        return Ok(Answer::new(Exit::Done, document, "nothing is due"));
    }
    let columns = [
        Column::Text("job"),
        Column::Text("account"),
        Column::Text("kind"),
        Column::Number("attempt"),
        Column::Text("lease until"),
        Column::Number("revision"),
    ];
    let rows = claimed.iter().map(|claimed| {
        vec![
            claimed.job.to_string(),
            claimed.account.to_string(),
            claimed.kind.to_string(),
            claimed.attempt.to_string(),
            claimed.lease_until.to_string(),
            claimed.revision.to_string(),
        ]
    });
    Ok(Answer::new(Exit::Done, document, table(&columns, rows)))
}

fn document(claimed: &Claimed) -> Value {
    json!({
        "job": claimed.job.as_str(),
        "account": claimed.account.as_str(),
        "kind": claimed.kind.as_str(),
        "attempt": claimed.attempt.get(),
        "lease_until": claimed.lease_until.to_string(),
        "revision": claimed.revision.get(),
    })
}
