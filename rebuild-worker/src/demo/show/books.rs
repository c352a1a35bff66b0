//! The sections of the books: jobs, balances, usage, a statement, one job's life.

use recoup::Rounding;

use super::super::facts::{Balance, Balances, Entry, Life, Statement};
use super::super::paper::{
    Align::{Left, Right},
    Cell, Paper, Style, grouped,
};
use super::{LINE_COLUMNS, Page, TEXT_COLUMNS, count, faint, plural, short, shorten};

impl Page<'_> {
    pub(super) fn jobs(&self, paper: &mut Paper) {
        paper.section(
            "Jobs",
            "where they stand, from the jobs projection; no job costs its price twice",
        );
        let columns = [
            ("work", Left),
            ("money", Left),
            ("jobs", Right),
            ("cost", Right),
            ("paid", Right),
        ];
        let rows: Vec<Vec<Cell>> = self
            .facts
            .jobs
            .iter()
            .map(|group| {
                let paid = if group.money == "refunded" {
                    0
                } else {
                    group.cost
                };
                vec![
                    group.state.as_str().into(),
                    Cell::styled(group.money.as_str(), money_style(&group.money)),
                    count(group.jobs),
                    self.amount(group.cost).into(),
                    self.amount(paid).into(),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
    }

    pub(super) fn balances(&self, paper: &mut Paper, balances: &Balances) {
        paper.section(
            "Balances",
            "the busiest accounts, then odd ones; held is refunded, but not yet free to spend",
        );
        let months: Vec<String> = balances
            .months
            .iter()
            .map(|month| format!("spent {month}"))
            .collect();
        let mut columns = vec![
            ("account", Left),
            ("jobs", Right),
            ("balance", Right),
            ("held", Right),
            ("available", Right),
        ];
        columns.extend(months.iter().map(|month| (month.as_str(), Right)));
        columns.push(("month's cap", Right));
        let row = |balance: &Balance| {
            let mut row: Vec<Cell> = vec![
                balance.account.as_str().into(),
                count(balance.jobs),
                self.amount(balance.figures.balance).into(),
                if balance.figures.held == 0 {
                    faint("0")
                } else {
                    Cell::styled(self.amount(balance.figures.held), Style::Odd)
                },
                Cell::styled(
                    self.amount(balance.available),
                    if balance.available < 0 {
                        Style::Bad
                    } else {
                        Style::Plain
                    },
                ),
            ];
            for month in &balances.months {
                row.push(
                    self.amount(balance.spent.get(month).copied().unwrap_or(0))
                        .into(),
                );
            }
            row.push(
                balance
                    .monthly_cap
                    .map_or(faint(""), |cap| self.amount(cap).into()),
            );
            row
        };
        let rows: Vec<Vec<Cell>> = balances
            .shown
            .iter()
            .chain([&balances.total])
            .map(row)
            .collect();
        paper.table(&columns, &rows);
        if balances.below_floor > 0 {
            let text = format!(
                "{} below the floor: refunds were spent, then the work turned out to be done",
                plural(balances.below_floor, "account is", "accounts are")
            );
            paper.line(&[(&text, Style::Faint)]);
        }
    }

    pub(super) fn usage(&self, paper: &mut Paper) {
        paper.section(
            "Daily usage",
            "all accounts by posted day: a late success counts on the day it is known",
        );
        let columns = [
            ("day", Left),
            ("kind", Left),
            ("jobs", Right),
            ("charged", Right),
            ("refunded", Right),
            ("reclaimed", Right),
            ("net", Right),
        ];
        let mut day = "";
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        for usage in &self.facts.usage {
            let is_same = usage.day == day;
            day = &usage.day;
            rows.push(vec![
                if is_same { "".into() } else { day.into() },
                usage.kind.as_str().into(),
                count(usage.jobs.unsigned_abs()),
                self.amount(usage.charged).into(),
                self.amount(usage.refunded).into(),
                self.amount(usage.reclaimed).into(),
                self.amount(usage.net).into(),
            ]);
        }
        paper.table(&columns, &rows);
    }

    pub(super) fn statement(&self, paper: &mut Paper, statement: &Statement) {
        let explained = format!(
            "{} of {} entries of {}, with the balance after each",
            statement.entries.len(),
            grouped(statement.entries_total as u64),
            statement.account
        );
        paper.section("Statement", &explained);
        let columns = [
            ("entry", Right),
            ("posted", Left),
            ("type", Left),
            ("amount", Right),
            ("balance", Right),
            ("for", Left),
            ("charged", Left),
        ];
        let job = self.facts.life.as_ref().map(|life| life.job.as_str());
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        let mut next = 1;
        for entry in &statement.entries {
            if entry.number > next {
                rows.push(vec![faint("…")]);
            }
            next = entry.number + 1;
            rows.push(self.entry(entry, job.is_some() && entry.job.as_deref() == job));
        }
        paper.table(&columns, &rows);
    }

    fn entry(&self, entry: &Entry, is_told: bool) -> Vec<Cell> {
        let style = if is_told { Style::Title } else { Style::Plain };
        let charged = entry
            .charged_at
            .as_deref()
            .filter(|_| entry.entry_type != "charge");
        vec![
            grouped(entry.number as u64).into(),
            short(&entry.posted_at).into(),
            Cell::styled(entry.entry_type.as_str(), style),
            self.signed(entry.amount),
            self.amount(entry.balance).into(),
            Cell::styled(
                entry
                    .job
                    .as_deref()
                    .or(entry.reference.as_deref())
                    .unwrap_or(""),
                style,
            ),
            faint(&charged.map_or(String::new(), short)),
        ]
    }

    pub(super) fn life(&self, paper: &mut Paper, life: &Life) {
        let explained = format!(
            "{}, {} of {}: given up on, refunded, done after all, paid once",
            life.job, life.kind, life.account
        );
        paper.section("One job", &explained);
        let rounded = match life.rounding {
            Rounding::Up => "rounded up",
            Rounding::Down => "rounded down",
            Rounding::HalfEven => "rounded half to even",
        };
        let price = format!(
            "price {} = {}, {rounded}",
            life.price,
            self.amount(life.cost)
        );
        paper.line(&[(&shorten(&price, LINE_COLUMNS), Style::Plain)]);
        let columns = [
            ("rev", Right),
            ("posted", Left),
            ("event", Left),
            ("amount", Right),
            ("held", Right),
            ("", Left),
        ];
        let rows: Vec<Vec<Cell>> = life
            .events
            .iter()
            .map(|event| {
                vec![
                    event.revision.to_string().into(),
                    short(&event.posted_at).into(),
                    event.event.as_str().into(),
                    event.amount.map_or(faint(""), |amount| self.signed(amount)),
                    event
                        .held
                        .filter(|held| *held != 0)
                        .map_or(faint(""), |held| self.signed(held)),
                    faint(&shorten(&event.detail, TEXT_COLUMNS)),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
        let end = format!(
            "{}, {}: net {}",
            life.state,
            life.money,
            self.amount(life.net)
        );
        paper.line(&[(&end, Style::Plain)]);
    }
}

fn money_style(money: &str) -> Style {
    match money {
        "refunded" => Style::Good,
        "reclaimed" => Style::Odd,
        _ => Style::Plain,
    }
}
