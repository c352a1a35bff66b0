//! `recoup job list`: jobs by account and state, from the projection `jobs`, in the order in which they were charged.

use recoup::AccountId;
use recoup_projections::{JobFilter, JobRow, Order, Projection, State};
use serde_json::{Value, json};

use crate::cli::answer::Answer;
use crate::cli::fresh::Fresh;
use crate::cli::session::Session;
use crate::cli::table::{Column, table, to_second};
use crate::cli::values::{Paging, Parsed};
use crate::exit::Exit;

/// Which jobs, and which part of them.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Of this account only.
    #[arg(long, value_name = "ID")]
    account: Option<AccountId>,
    /// In this state only: queued, running, retry_scheduled, failed, dead_lettered, delivered, cancelled or discarded.
    #[arg(long, value_parser = state)]
    state: Option<State>,
    /// The last charged first.
    #[arg(long)]
    newest_first: bool,
    #[command(flatten)]
    paging: Paging,
}

fn state(text: &str) -> Parsed<State> {
    State::parse(text).ok_or_else(|| {
        let names: Vec<&str> = State::ALL.iter().map(|state| state.name()).collect();
        format!("{text:?} is not one of {}", names.join(", "))
    })
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let Args {
        account,
        state,
        newest_first,
        paging,
    } = args;
    let order = if newest_first {
        Order::NewestFirst
    } else {
        Order::OldestFirst
    };
    let fresh = Fresh::read(session, Projection::Jobs).await?;
    let filter = JobFilter {
        account,
        state,
        order,
    };
    let page = fresh
        .projections
        .jobs(filter, paging.after(), paging.limit)
        .await?;
    let document = json!({
        "jobs": page.rows.iter().map(row_document).collect::<Vec<_>>(),
        "next": page.next.map(recoup::Position::get),
        "scale": session.scale.get(),
    });
    let document = fresh.stamp(document);
    if page.rows.is_empty() {
        return Ok(Answer::new(Exit::Done, document, fresh.nothing("no jobs")));
    }
    let columns = [
        Column::Text("job"),
        Column::Text("account"),
        Column::Text("kind"),
        Column::Number("cost"),
        Column::Text("state"),
        Column::Text("money"),
        Column::Number("held"),
        Column::Number("attempts"),
        Column::Text("charged at"),
    ];
    let rows = page.rows.iter().map(|row| {
        vec![
            row.job.to_string(),
            row.account.to_string(),
            row.kind.to_string(),
            session.scale.show(row.cost),
            row.state.to_owned(),
            row.money.to_owned(),
            session.scale.show(row.held),
            row.attempt.to_string(),
            to_second(row.charged_at),
        ]
    });
    let text = paging.with_next(table(&columns, rows), page.next);
    Ok(Answer::new(Exit::Done, document, text))
}

fn row_document(row: &JobRow) -> Value {
    json!({
        "job": row.job.as_str(),
        "account": row.account.as_str(),
        "kind": row.kind.as_str(),
        "cost": row.cost,
        "state": row.state,
        "money": row.money,
        "net": row.net(),
        "held": row.held,
        "attempts": row.attempt,
        "charged_at": row.charged_at.to_string(),
        "updated_at": row.updated_at.to_string(),
        "position": row.opened.get(),
        "last_position": row.last_position.get(),
    })
}
