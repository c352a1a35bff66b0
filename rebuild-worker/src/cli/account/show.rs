//! `recoup account show`: the figures that guard charges, with the log's head of the same moment.

use recoup::store::StoreError;
use recoup::{AccountId, AccountState, BudgetMonth, Floor, Position};
use serde_json::{Value, json};

use crate::cli::answer::Answer;
use crate::cli::session::Session;
use crate::cli::table::list;
use crate::exit::Exit;

pub(super) async fn run(session: &Session, account: AccountId) -> anyhow::Result<Answer> {
    let now = session.ledger.now();
    let month = now.zone.month_of(now.at);
    let asked = account.clone();
    session.database.settle_figures().await?;
    let (state, head): (AccountState, Position) = session
        .database
        .snapshot(move |tx| {
            let head = tx.read_figures_position()?;
            Ok::<_, StoreError>((tx.read_account(&asked, month)?, head))
        })
        .await?;
    let mut document = figures(&account, &state, month);
    document["scale"] = session.scale.get().into();
    document["as_of_position"] = head.get().into();
    Ok(Answer::new(
        Exit::Done,
        document,
        text(session, &account, &state, month),
    ))
}

/// An account's figures as a document.
pub(super) fn figures(account: &AccountId, state: &AccountState, month: BudgetMonth) -> Value {
    let of_month = state.month(month);
    json!({
        "account": account.as_str(),
        "balance": state.balance,
        "held": state.held,
        "reserved": state.reserved,
        "available": state.available(),
        "floor": floor(state),
        "month": {
            "period": month.to_string(),
            "spent": of_month.spent,
            "held": of_month.held,
            "cap": state.limits.monthly_cap,
        },
    })
}

/// The floor; none for postpaid.
pub(super) const fn floor(state: &AccountState) -> Option<i64> {
    match state.limits.floor {
        Floor::At(floor) => Some(floor),
        Floor::None => None,
    }
}

fn text(
    session: &Session,
    account: &AccountId,
    state: &AccountState,
    month: BudgetMonth,
) -> String {
    let show = |amount: i64| session.scale.show(amount);
    let of_month = state.month(month);
    let cap = state
        .limits
        .monthly_cap
        .map_or_else(|| "no cap".to_owned(), |cap| format!("of {}", show(cap)));
    let held = match of_month.held {
        0 => String::new(),
        held => format!(" and {} held", show(held)),
    };
    list(&[
        ("account", account.to_string()),
        ("balance", show(state.balance)),
        ("held", show(state.held)),
        ("available", show(state.available())),
        (
            "floor",
            floor(state).map_or_else(|| "none".to_owned(), show),
        ),
        (
            "month",
            format!("{month}: {} spent{held}, {cap}", show(of_month.spent)),
        ),
    ])
}
