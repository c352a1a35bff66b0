//! `recoup dead-letters list`: from the projection of that name, the oldest first.

use recoup_projections::{DeadLetterFilter, DeadLetterRow, Projection};
use serde_json::{Value, json};

use crate::cli::answer::Answer;
use crate::cli::fresh::Fresh;
use crate::cli::session::Session;
use crate::cli::table::{Column, table, to_second};
use crate::cli::values::Paging;
use crate::exit::Exit;

pub(super) async fn run(
    session: &Session,
    filter: DeadLetterFilter,
    paging: Paging,
) -> anyhow::Result<Answer> {
    let fresh = Fresh::read(session, Projection::DeadLetters).await?;
    let page = fresh
        .projections
        .dead_letters(&filter, paging.after(), paging.limit)
        .await?;
    let document = json!({
        "dead_letters": page.rows.iter().map(row_document).collect::<Vec<_>>(),
        "next": page.next.map(recoup::Position::get),
        "scale": session.scale.get(),
    });
    let document = fresh.stamp(document);
    if page.rows.is_empty() {
        let nothing = fresh.nothing("no dead letters");
        return Ok(Answer::new(Exit::Done, document, nothing));
    }
    let columns = [
        Column::Number("position"),
        Column::Text("dead-lettered at"),
        Column::Text("job"),
        Column::Text("account"),
        Column::Text("kind"),
        Column::Number("cost"),
        Column::Text("cause"),
        Column::Number("attempts"),
        Column::Text("last failure"),
    ];
    let rows = page.rows.iter().map(|row| {
        vec![
            row.position.to_string(),
            to_second(row.dead_lettered_at),
            row.job.to_string(),
            row.account.to_string(),
            row.kind.to_string(),
            session.scale.show(row.cost),
            row.cause.to_owned(),
            row.attempts.to_string(),
            row.reason.clone().unwrap_or_default(),
        ]
    });
    let text = paging.with_next(table(&columns, rows), page.next);
    Ok(Answer::new(Exit::Done, document, text))
}

fn row_document(row: &DeadLetterRow) -> Value {
    json!({
        "position": row.position.get(),
        "job": row.job.as_str(),
        "account": row.account.as_str(),
        "kind": row.kind.as_str(),
        "cost": row.cost,
        "cause": row.cause,
        "attempts": row.attempts,
        "reason": row.reason,
        "dead_lettered_at": row.dead_lettered_at.to_string(),
    })
}
