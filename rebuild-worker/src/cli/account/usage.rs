//! `recoup account usage`: sums by day and kind, from the projection `daily_usage`. A day is one of the ledger's time zone.

use recoup::{AccountId, Day};
use recoup_projections::{Projection, UsageRow};
use serde_json::{Value, json};

use crate::cli::answer::{Answer, usage};
use crate::cli::fresh::Fresh;
use crate::cli::session::Session;
use crate::cli::table::{Column, table};
use crate::exit::Exit;

/// Whose, and which days.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Whose.
    account: AccountId,
    /// The first day, included.
    #[arg(long, value_name = "DAY", value_parser = Day::parse)]
    from: Option<Day>,
    /// The last day, included.
    #[arg(long, value_name = "DAY", value_parser = Day::parse)]
    to: Option<Day>,
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let Args { account, from, to } = args;
    if from.zip(to).is_some_and(|(from, to)| from > to) {
        return Err(usage("--from is after --to"));
    }
    let fresh = Fresh::read(session, Projection::DailyUsage).await?;
    let days = fresh.projections.usage(&account, from, to).await?;
    let document = json!({
        "account": account.as_str(),
        "scale": session.scale.get(),
        "zone": session.zone.name(),
        "days": days.iter().map(row_document).collect::<Vec<_>>(),
    });
    let document = fresh.stamp(document);
    if days.is_empty() {
        return Ok(Answer::new(
            Exit::Done,
            document,
            fresh.nothing(&format!("{account}: no usage")),
        ));
    }
    let columns = [
        Column::Text("day"),
        Column::Text("kind"),
        Column::Number("charged"),
        Column::Number("refunded"),
        Column::Number("reclaimed"),
        Column::Number("net"),
        Column::Number("jobs"),
    ];
    let show = |amount: i64| session.scale.show(amount);
    let rows = days.iter().map(|row| {
        vec![
            row.day.to_string(),
            row.kind.to_string(),
            show(row.charged),
            show(row.refunded),
            show(row.reclaimed),
            show(row.net()),
            row.jobs.to_string(),
        ]
    });
    let text = format!("{}\ndays in {}", table(&columns, rows), session.zone);
    Ok(Answer::new(Exit::Done, document, text))
}

fn row_document(row: &UsageRow) -> Value {
    json!({
        "day": row.day.to_string(),
        "kind": row.kind.as_str(),
        "charged": row.charged,
        "refunded": row.refunded,
        "reclaimed": row.reclaimed,
        "net": row.net(),
        "jobs": row.jobs,
    })
}
