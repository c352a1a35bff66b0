//! `recoup account entries`: the statement, from the projection `entries`, oldest first.

use recoup::AccountId;
use recoup_projections::{EntryRow, Projection};
use serde_json::{Value, json};

use crate::cli::answer::Answer;
use crate::cli::fresh::Fresh;
use crate::cli::session::Session;
use crate::cli::table::{Column, table, to_second};
use crate::cli::values::Paging;
use crate::exit::Exit;

/// Whose, and which part.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Whose.
    account: AccountId,
    #[command(flatten)]
    paging: Paging,
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let Args { account, paging } = args;
    let fresh = Fresh::read(session, Projection::Entries).await?;
    let page = fresh
        .projections
        .entries(&account, paging.after(), paging.limit)
        .await?;
    let document = json!({
        "account": account.as_str(),
        "scale": session.scale.get(),
        "entries": page.rows.iter().map(row_document).collect::<Vec<_>>(),
        "next": page.next.map(recoup::Position::get),
    });
    let document = fresh.stamp(document);
    if page.rows.is_empty() {
        return Ok(Answer::new(
            Exit::Done,
            document,
            fresh.nothing(&format!("{account}: no entries")),
        ));
    }
    let columns = [
        Column::Number("position"),
        Column::Text("posted at"),
        Column::Text("type"),
        Column::Number("amount"),
        Column::Number("balance"),
        Column::Text("job, grant or adjustment"),
        Column::Text("kind or reason"),
    ];
    let scale = session.scale;
    let rows = page.rows.iter().map(|row| {
        let job = row.job.as_ref().map(ToString::to_string);
        vec![
            row.position.to_string(),
            to_second(row.posted_at),
            row.entry_type.name().to_owned(),
            scale.show(row.amount),
            scale.show(row.balance),
            row.reference.clone().or(job).unwrap_or_default(),
            row.reason
                .clone()
                .or_else(|| row.kind.as_ref().map(ToString::to_string))
                .unwrap_or_default(),
        ]
    });
    let text = paging.with_next(table(&columns, rows), page.next);
    Ok(Answer::new(Exit::Done, document, text))
}

fn row_document(row: &EntryRow) -> Value {
    json!({
        "position": row.position.get(),
        "type": row.entry_type.name(),
        "amount": row.amount,
        "balance": row.balance,
        "job": row.job.as_ref().map(recoup::JobId::as_str),
        "kind": row.kind.as_ref().map(recoup::Kind::as_str),
        "reference": row.reference,
        "reason": row.reason,
        "posted_at": row.posted_at.to_string(),
        "charged_at": row.charged_at.map(|at| at.to_string()),
    })
}
