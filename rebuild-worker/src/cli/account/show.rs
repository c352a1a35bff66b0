//! `recoup account show`: the figures that guard charges, with the log's head of the same moment.

use recoup::account::MonthState;
use recoup::sql::Transaction;
use recoup::store::StoreError;
use recoup::{AccountId, AccountState, BudgetMonth, Floor, Limits, Position, values};
use serde_json::{Value, json};

use crate::cli::answer::Answer;
use crate::cli::session::Session;
use crate::cli::table::list;
use crate::exit::Exit;

pub(super) async fn run(session: &Session, account: AccountId) -> anyhow::Result<Answer> {
    let now = session.ledger.now();
    let month = now.zone.month_of(now.at);
    let asked = account.clone();
    let (state, head): (AccountState, Position) = session
        .database
        .snapshot(move |tx| Ok::<_, StoreError>((read(tx, &asked, month)?, tx.read_head()?)))
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

/// An account's figures, with those of `month`; zeros for an unknown account.
fn read(
    tx: &Transaction<'_>,
    account: &AccountId,
    month: BudgetMonth,
) -> Result<AccountState, StoreError> {
    let sql = "SELECT s.balance, s.held, s.reserved, s.floor, s.monthly_cap, s.last_position, m.spent, m.held, m.reserved
        FROM account_state s LEFT JOIN account_month m ON m.account = s.account AND m.month = ?2
        WHERE s.account = ?1";
    let values = values![account.as_str(), month.to_string()];
    let state = tx.row(sql, values, |row| {
        let floor: Option<i64> = row.get(3)?;
        let mut state = AccountState {
            balance: row.get(0)?,
            held: row.get(1)?,
            reserved: row.get(2)?,
            limits: Limits {
                floor: floor.map_or(Floor::None, Floor::At),
                monthly_cap: row.get(4)?,
            },
            last_position: Some(Position::new(row.get(5)?)),
            ..AccountState::default()
        };
        if let Some(spent) = row.get(6)? {
            let figures = MonthState {
                spent,
                held: row.get(7)?,
                reserved: row.get(8)?,
            };
            state.months.insert(month, figures);
        }
        Ok(state)
    })?;
    Ok(state.unwrap_or_default())
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
