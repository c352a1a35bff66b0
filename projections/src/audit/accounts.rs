//! Account figures: folded by the ledger's own pure [`AccountState::apply`] over the whole log, compared with the stored ones at
//! its head; where the log is in another database, at the place up to which they are folded.
//!
//! An account that an unreadable event may have moved is folded no farther and not compared; if nobody can tell which account
//! that is, none is. Bound: one state in memory for each account, with its months.

use std::collections::HashMap;

use recoup::account::{AccountEvent, AccountState, Floor, MonthState};
use recoup::codec::Event;
use recoup::sql::Transaction;
use recoup::store::StoreError;
use recoup::{AccountId, Position, values};

use super::report::{Area, Fields, Report};
use super::rows::or_none;

/// How many accounts are read at a time.
const ROWS: usize = 1_000;

#[derive(Default)]
struct Folded {
    state: AccountState,
    is_stopped: bool,
    is_seen: bool,
}

#[derive(Default)]
pub(super) struct Accounts {
    folded: HashMap<AccountId, Folded>,
    /// An event was lost, and nobody can tell whose figures it moved.
    is_blind: bool,
}

impl Accounts {
    /// Folds an event. Gives the balance that it leaves, where it moves any and that can be told.
    pub(super) fn fold(
        &mut self,
        report: &mut Report,
        position: Position,
        event: &Event,
    ) -> Option<i64> {
        if let Event::Account(AccountEvent::LimitsSet(set)) = event {
            let folded = self.folded.entry(set.account.clone()).or_default();
            if !folded.is_stopped {
                folded.state.set_limits(set.limits, position);
            }
            return None;
        }
        let posting = event.posting()?;
        let folded = self.folded.entry(posting.account.clone()).or_default();
        if folded.is_stopped {
            return None;
        }
        if let Err(overflow) = folded.state.apply(posting, position) {
            let what = format!("event {position}: {overflow}; its fold stops there");
            report.wrong(Area::AccountState, &posting.account, what);
            folded.is_stopped = true;
            return None;
        }
        Some(folded.state.balance)
    }

    /// An event that cannot be read may have moved `account`, or, if that cannot be told, any.
    pub(super) fn stop(&mut self, account: Option<&AccountId>) {
        match account {
            Some(account) => self.folded.entry(account.clone()).or_default().is_stopped = true,
            None => self.is_blind = true,
        }
    }

    /// Compares the union of the accounts of both sides: once, when the fold is where the stored figures are. It goes on afterwards.
    pub(super) fn compare_all(
        &mut self,
        tx: &Transaction<'_>,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        if self.is_blind {
            return Ok(());
        }
        let mut after: Option<AccountId> = None;
        loop {
            let page = match tx.read_accounts(after.as_ref(), ROWS) {
                Ok(page) => page,
                Err(StoreError::Damaged { why }) => {
                    report.wrong(Area::AccountState, "the table", why);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            for (account, found) in &page {
                self.compare(report, account, found);
            }
            if page.len() < ROWS {
                break;
            }
            after = page.into_iter().next_back().map(|(account, _)| account);
        }
        self.report_missing(report);
        report_orphans(tx, report)
    }

    fn compare(&mut self, report: &mut Report, account: &AccountId, found: &AccountState) {
        report.count(Area::AccountState, 1);
        match self.folded.get_mut(account) {
            Some(folded) => {
                folded.is_seen = true;
                if !folded.is_stopped && folded.state != *found {
                    let values = (Some(fields(&folded.state)), Some(fields(found)));
                    report.row(Area::AccountState, account, values);
                }
            }
            None => report.row(Area::AccountState, account, (None, Some(fields(found)))),
        }
    }

    fn report_missing(&self, report: &mut Report) {
        let is_missing = |folded: &Folded| !folded.is_seen && !folded.is_stopped;
        let mut missing: Vec<_> = self
            .folded
            .iter()
            .filter(|(_, folded)| is_missing(folded))
            .collect();
        missing.sort_unstable_by_key(|(account, _)| *account);
        for (account, folded) in missing {
            report.count(Area::AccountState, 1);
            let values = (Some(fields(&folded.state)), None);
            report.row(Area::AccountState, account, values);
        }
    }
}

/// Months without an account: no figure of an account leads to them.
fn report_orphans(tx: &Transaction<'_>, report: &mut Report) -> Result<(), StoreError> {
    let sql = "SELECT account, month, spent, held, reserved FROM account_month m
        WHERE NOT EXISTS (SELECT 1 FROM account_state s WHERE s.account = m.account)
        ORDER BY account, month";
    let rows = tx.rows(sql, values![], |row| {
        let (account, month): (String, String) = (row.get(0)?, row.get(1)?);
        let figures: [i64; 3] = [row.get(2)?, row.get(3)?, row.get(4)?];
        Ok((format!("{account}, month {month}"), figures))
    })?;
    for (subject, figures) in rows {
        let names = ["spent", "held", "reserved"];
        let fields = names
            .into_iter()
            .zip(figures.map(|figure| figure.to_string()));
        report.row(Area::AccountState, subject, (None, Some(fields.collect())));
    }
    Ok(())
}

/// The state's values, named. Months are shown together.
fn fields(state: &AccountState) -> Fields {
    let floor = match state.limits.floor {
        Floor::At(floor) => floor.to_string(),
        Floor::None => "none".to_owned(),
    };
    let mut fields = vec![
        ("balance", state.balance.to_string()),
        ("held", state.held.to_string()),
        ("reserved", state.reserved.to_string()),
        ("floor", floor),
        ("monthly_cap", or_none(state.limits.monthly_cap)),
        ("last_position", or_none(state.last_position)),
    ];
    for (month, figures) in &state.months {
        let MonthState {
            spent,
            held,
            reserved,
        } = figures;
        let text = format!("{month} (spent {spent}, held {held}, reserved {reserved})");
        fields.push(("month", text));
    }
    fields
}
