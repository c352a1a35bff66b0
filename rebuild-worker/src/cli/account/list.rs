//! `recoup account list`: the figures that guard charges, account by account, in byte order of the ids.

use recoup::{AccountId, EventStore};
use serde_json::{Value, json};

use super::show::{figures, floor};
use crate::cli::answer::Answer;
use crate::cli::session::Session;
use crate::cli::table::{Column, table};
use crate::exit::Exit;

/// Which part.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Begin behind this account: the `next` of the page before.
    #[arg(long, value_name = "ACCOUNT")]
    after: Option<AccountId>,
    /// The most accounts to show.
    #[arg(long, value_name = "ROWS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

pub(super) async fn run(session: &Session, args: Args) -> anyhow::Result<Answer> {
    let limit = args.limit as usize;
    let now = session.ledger.now();
    let month = now.zone.month_of(now.at);
    // One more than asked for says whether there is a next page.
    let mut accounts = session
        .database
        .accounts(args.after.as_ref(), limit.saturating_add(1))
        .await?;
    let has_more = accounts.len() > limit;
    accounts.truncate(limit);
    let next = accounts
        .last()
        .filter(|_| has_more)
        .map(|(account, _)| account.clone());
    let documents: Vec<Value> = accounts
        .iter()
        .map(|(account, state)| figures(account, state, month))
        .collect();
    let document = json!({
        "accounts": documents,
        "next": next.as_ref().map(AccountId::as_str),
        "scale": session.scale.get(),
    });
    if accounts.is_empty() {
        return Ok(Answer::new(Exit::Done, document, "no accounts"));
    }
    let show = |amount: i64| session.scale.show(amount);
    let columns = [
        Column::Text("account"),
        Column::Number("balance"),
        Column::Number("held"),
        Column::Number("available"),
        Column::Number("floor"),
        Column::Number("spent this month"),
        Column::Number("cap"),
    ];
    let none = || "none".to_owned();
    let rows = accounts.iter().map(|(account, state)| {
        vec![
            account.to_string(),
            show(state.balance),
            show(state.held),
            show(state.available()),
            floor(state).map_or_else(none, show),
            show(state.month(month).spent),
            state.limits.monthly_cap.map_or_else(none, show),
        ]
    });
    let mut text = table(&columns, rows);
    if let Some(next) = next {
        text = format!("{text}\nmore: --after={next} --limit {}", args.limit);
    }
    Ok(Answer::new(Exit::Done, document, text))
}
