//! Account figures: which to show, and how they compare with the reckoning. Pure.

use std::collections::{BTreeMap, BTreeSet};

use recoup::account::AccountState;
use recoup::{AccountId, Floor};

use super::super::expect::{Expected, Figures, JobCounts};
use super::super::facts::{Balance, Balances, Comparison, Counts, Difference};
use super::JobsRead;

/// How many of the busiest accounts are shown, and how many of the odd ones.
const BUSIEST: usize = 5;
const ODD: usize = 4;

/// How many differences are kept; all are counted.
const KEPT: usize = 1_000;

/// The figures to show: of the busiest accounts, of some odd ones, and of all.
pub(in crate::demo) fn balances(
    accounts: &[(AccountId, AccountState)],
    jobs: &JobsRead,
) -> Balances {
    let rows = accounts.iter().map(|(id, state)| {
        let count = jobs.per_account.get(id).copied().unwrap_or(0);
        (balance(id.to_string(), count, state), is_below_floor(state))
    });
    let mut rows: Vec<(Balance, bool)> = rows.collect();
    let total = rows
        .iter()
        .fold(empty("all accounts"), |mut total, (row, _)| {
            total.jobs += row.jobs;
            total.figures.balance += row.figures.balance;
            total.figures.held += row.figures.held;
            total.available += row.available;
            for (month, spent) in &row.spent {
                *total.spent.entry(month.clone()).or_default() += spent;
            }
            total
        });
    let below_floor = rows.iter().filter(|(_, is_below)| *is_below).count();
    let months = total.spent.keys().cloned().collect();
    rows.sort_by(|(a, _), (b, _)| b.jobs.cmp(&a.jobs).then_with(|| a.account.cmp(&b.account)));
    let mut shown: Vec<Balance> = rows
        .iter()
        .take(BUSIEST)
        .map(|(row, _)| row.clone())
        .collect();
    let rest = rows.get(BUSIEST..).unwrap_or_default();
    // One or two of each oddity, the busiest first.
    let odd = [
        rest.iter()
            .filter(|(_, is_below)| *is_below)
            .take(1)
            .collect::<Vec<_>>(),
        rest.iter()
            .filter(|(row, _)| row.figures.held > 0)
            .take(1)
            .collect(),
        rest.iter()
            .filter(|(row, _)| row.monthly_cap.is_some())
            .take(2)
            .collect(),
    ];
    for (row, _) in odd.into_iter().flatten().take(ODD) {
        if shown.iter().all(|other| other.account != row.account) {
            shown.push(row.clone());
        }
    }
    Balances {
        accounts: accounts.len(),
        below_floor,
        months,
        shown,
        total,
    }
}

fn empty(name: &str) -> Balance {
    Balance {
        account: name.to_owned(),
        jobs: 0,
        figures: Figures::default(),
        available: 0,
        spent: BTreeMap::new(),
        monthly_cap: None,
    }
}

fn balance(account: String, jobs: u64, state: &AccountState) -> Balance {
    Balance {
        jobs,
        figures: figures(state),
        available: state.available(),
        spent: state
            .months
            .iter()
            .map(|(month, figures)| (month.to_string(), figures.spent))
            .collect(),
        monthly_cap: state.limits.monthly_cap,
        ..empty(&account)
    }
}

fn is_below_floor(state: &AccountState) -> bool {
    matches!(state.limits.floor, Floor::At(floor) if state.available() < floor)
}

fn figures(state: &AccountState) -> Figures {
    Figures {
        balance: state.balance,
        held: state.held,
    }
}

/// The reckoning beside what was read back.
pub(in crate::demo) fn compare(
    expected: &Expected,
    accounts: &[(AccountId, AccountState)],
    jobs: &JobsRead,
) -> Comparison {
    let found: BTreeMap<&AccountId, Figures> = accounts
        .iter()
        .map(|(id, state)| (id, figures(state)))
        .collect();
    let names: BTreeSet<&AccountId> = expected
        .accounts
        .keys()
        .chain(found.keys().copied())
        .collect();
    let differences = names.iter().filter_map(|name| {
        let reckoned = expected.accounts.get(name).copied().unwrap_or_default();
        let figures = found.get(name).copied().unwrap_or_default();
        let account = name.to_string();
        (reckoned != figures).then_some(Difference {
            account,
            expected: reckoned,
            found: figures,
        })
    });
    let mut differences: Vec<Difference> = differences.collect();
    let difference_count = differences.len();
    differences.truncate(KEPT);
    Comparison {
        accounts: names.len(),
        differences,
        difference_count,
        expected: counts(expected.jobs, expected.accounts.values()),
        found: counts(jobs.counts, found.values()),
    }
}

fn counts<'a>(jobs: JobCounts, figures: impl Iterator<Item = &'a Figures>) -> Counts {
    figures.fold(
        Counts {
            jobs,
            balance: 0,
            held: 0,
        },
        |sum, figures| Counts {
            balance: sum.balance + figures.balance,
            held: sum.held + figures.held,
            ..sum
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> AccountId {
        AccountId::new(name).expect("a test's id is valid")
    }

    fn state(balance: i64, held: i64) -> AccountState {
        AccountState {
            balance,
            held,
            ..AccountState::default()
        }
    }

    #[test]
    fn every_difference_from_the_reckoning_is_found() {
        let mut expected = Expected::default();
        for (name, balance, held) in [("equal", 5, 1), ("other-hold", 5, 1), ("missing", -3, 0)] {
            expected
                .accounts
                .insert(account(name), Figures { balance, held });
        }
        let found = [
            ("equal", state(5, 1)),
            ("other-hold", state(5, 0)),
            ("too-many", state(1, 0)),
        ];
        let accounts = found.map(|(name, state)| (account(name), state));
        let comparison = compare(&expected, &accounts, &JobsRead::default());
        assert!(!comparison.is_equal());
        let names: Vec<&str> = comparison
            .differences
            .iter()
            .map(|found| found.account.as_str())
            .collect();
        assert_eq!(names, ["missing", "other-hold", "too-many"]);
        assert_eq!((comparison.accounts, comparison.difference_count), (4, 3));
    }

    #[test]
    fn an_account_below_its_floor_is_shown_however_small() {
        let mut jobs = JobsRead::default();
        let accounts: Vec<(AccountId, AccountState)> = (0..50)
            .map(|number| {
                let id = account(&format!("acct-{number:02}"));
                jobs.per_account.insert(id.clone(), 100 - number);
                (id, state(if number == 49 { -1 } else { 10 }, 0))
            })
            .collect();
        let balances = balances(&accounts, &jobs);
        let shown: Vec<&str> = balances
            .shown
            .iter()
            .map(|row| row.account.as_str())
            .collect();
        assert_eq!(
            shown,
            [
                "acct-00", "acct-01", "acct-02", "acct-03", "acct-04", "acct-49"
            ]
        );
        assert_eq!(
            (balances.below_floor, balances.total.figures.balance),
            (1, 489)
        );
    }
}
