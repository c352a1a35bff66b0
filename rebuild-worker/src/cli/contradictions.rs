//! `recoup contradictions`: signals that contradicted what had happened, from the projection of that name.

use clap::Subcommand;
use recoup_projections::{ContradictionRow, Projection};
use serde_json::{Value, json};

use super::answer::Answer;
use super::fresh::Fresh;
use super::session::Global;
use super::table::{Column, table, to_second};
use super::values::Paging;
use crate::exit::Exit;

/// What to ask.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Oldest first.
    List(Paging),
}

pub(super) async fn run(global: &Global, verb: Verb) -> anyhow::Result<Answer> {
    let Verb::List(paging) = verb;
    let session = global.open().await?;
    let fresh = Fresh::read(&session, Projection::Contradictions).await?;
    let page = fresh
        .projections
        .contradictions(paging.after(), paging.limit)
        .await?;
    let document = json!({
        "contradictions": page.rows.iter().map(row_document).collect::<Vec<_>>(),
        "next": page.next.map(recoup::Position::get),
    });
    let document = fresh.stamp(document);
    if page.rows.is_empty() {
        return Ok(Answer::new(
            Exit::Done,
            document,
            fresh.nothing("no contradictions"),
        ));
    }
    let columns = [
        Column::Number("position"),
        Column::Text("posted at"),
        Column::Text("job"),
        Column::Text("account"),
        Column::Text("claimed"),
        Column::Number("attempt"),
        Column::Text("reason or result"),
    ];
    let rows = page.rows.iter().map(|row| {
        vec![
            row.position.to_string(),
            to_second(row.posted_at),
            row.job.to_string(),
            row.account.to_string(),
            row.signal.to_owned(),
            row.attempt.to_string(),
            row.reason
                .clone()
                .or_else(|| row.result.clone())
                .unwrap_or_default(),
        ]
    });
    let text = paging.with_next(table(&columns, rows), page.next);
    Ok(Answer::new(Exit::Done, document, text))
}

fn row_document(row: &ContradictionRow) -> Value {
    json!({
        "position": row.position.get(),
        "job": row.job.as_str(),
        "account": row.account.as_str(),
        "signal": row.signal,
        "attempt": row.attempt,
        "reason": row.reason,
        "result": row.result,
        "posted_at": row.posted_at.to_string(),
    })
}
