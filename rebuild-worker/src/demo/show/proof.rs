//! The sections of the proof: answers, contradictions, audit, and the demo's own reckoning.

use super::super::facts::{Comparison, Rebuilt};
use super::super::paper::{
    Align::{Left, Right},
    Cell, Paper, Style, grouped,
};
use super::{LINE_COLUMNS, Page, TEXT_COLUMNS, count, faint, short, shorten};

impl Page<'_> {
    pub(super) fn answers(&self, paper: &mut Paper) {
        paper.section(
            "Answers",
            "what the tasks were told; all that follows is read back from the ledger",
        );
        let columns = [
            ("command", Left),
            ("sent", Right),
            ("applied", Right),
            ("already applied", Right),
            ("noted", Right),
            ("rejected", Left),
        ];
        let rows: Vec<Vec<Cell>> = self
            .facts
            .answers
            .iter()
            .map(|answers| {
                let tally = &answers.tally;
                let rejected: Vec<String> = tally
                    .rejected
                    .iter()
                    .map(|(code, count)| format!("{} {code}", grouped(*count)))
                    .collect();
                vec![
                    answers.verb.name().into(),
                    count(tally.sent),
                    count(tally.applied),
                    count(tally.already_applied),
                    count(tally.noted),
                    rejected.join(", ").into(),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
        for example in &self.facts.refused {
            let example = shorten(example, LINE_COLUMNS - 5);
            paper.line(&[("e.g. ", Style::Faint), (&example, Style::Plain)]);
        }
    }

    pub(super) fn contradictions(&self, paper: &mut Paper) {
        let contradictions = &self.facts.contradictions;
        let explained = format!(
            "{} of {}: kept on record; they moved neither money nor state",
            contradictions.shown.len(),
            grouped(contradictions.count as u64)
        );
        paper.section("Contradictions", &explained);
        let columns = [
            ("job", Left),
            ("account", Left),
            ("posted", Left),
            ("claimed", Left),
            ("attempt", Right),
            ("", Left),
        ];
        let rows: Vec<Vec<Cell>> = contradictions
            .shown
            .iter()
            .map(|row| {
                vec![
                    row.job.as_str().into(),
                    row.account.as_str().into(),
                    short(&row.posted_at).into(),
                    Cell::styled(row.signal.as_str(), Style::Odd),
                    row.attempt.to_string().into(),
                    faint(&shorten(&row.detail, TEXT_COLUMNS)),
                ]
            })
            .collect();
        if !rows.is_empty() {
            paper.table(&columns, &rows);
        }
    }

    pub(super) fn rebuilt(&self, paper: &mut Paper, rebuilt: &Rebuilt) {
        paper.section(
            "Rebuild",
            "a consumer that ignores what it had applied already has spoilt daily usage, on purpose",
        );
        let columns = [
            ("account", Left),
            ("day", Left),
            ("kind", Left),
            ("charged, as shown", Right),
            ("by the log", Right),
            ("", Right),
        ];
        let rows: Vec<Vec<Cell>> = rebuilt
            .rows
            .iter()
            .map(|row| {
                // A ratio for people; amounts of a demo are far below 2^53.
                let ratio = row.charged_shown as f64 / row.charged.max(1) as f64;
                vec![
                    row.account.as_str().into(),
                    row.day.as_str().into(),
                    row.kind.as_str().into(),
                    Cell::styled(self.amount(row.charged_shown), Style::Bad),
                    self.amount(row.charged).into(),
                    faint(&format!("{ratio:.1} times the truth")),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
        paper.line(&[]);
        let columns = [
            ("", Left),
            ("run", Left),
            ("days", Left),
            ("events read", Right),
            ("rows checked", Right),
            ("different", Right),
        ];
        let commands = ["rebuild --verify", "rebuild", "rebuild --verify"];
        let rows: Vec<Vec<Cell>> = rebuilt
            .runs
            .iter()
            .zip(commands)
            .map(|(run, command)| {
                let (mark, style) = mark(run.rows_different == 0);
                let number = |number: i64| count(number.unsigned_abs());
                vec![
                    Cell::styled(mark, style),
                    command.into(),
                    format!("{} to {}", run.from, run.to).into(),
                    number(run.events_read),
                    number(run.rows_checked),
                    Cell::styled(grouped(run.rows_different.unsigned_abs()), style),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
        let again = format!(
            "{} charges were counted again; every repaired row is on record with what it showed before",
            grouped(rebuilt.applied_again)
        );
        paper.line(&[(&again, Style::Faint)]);
    }

    pub(super) fn audit(&self, paper: &mut Paper) {
        let audit = &self.facts.audit;
        let explained = format!(
            "one snapshot, {} events to position {}",
            grouped(audit.events),
            grouped(audit.position.unsigned_abs())
        );
        paper.section("Audit", &explained);
        let columns = [
            ("", Left),
            ("check", Left),
            ("looked at", Right),
            ("violations", Right),
            ("", Left),
        ];
        let rows: Vec<Vec<Cell>> = audit
            .checks
            .iter()
            .map(|check| {
                let (mark, style) = mark(check.violations == 0);
                vec![
                    Cell::styled(mark, style),
                    check.name.as_str().into(),
                    count(check.checked),
                    Cell::styled(grouped(check.violations), style),
                    faint(meaning(&check.name)),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
        for finding in audit.findings.iter().take(5) {
            paper.line(&[(&shorten(finding, LINE_COLUMNS), Style::Bad)]);
        }
    }

    pub(super) fn comparison(&self, paper: &mut Paper, comparison: &Comparison) {
        paper.section(
            "Reckoning",
            "kept by the demo from acknowledged answers alone, against the ledger",
        );
        let columns = [
            ("", Left),
            ("", Left),
            ("reckoned", Right),
            ("ledger", Right),
        ];
        let lines = self.lines(comparison);
        let rows: Vec<Vec<Cell>> = lines
            .into_iter()
            .map(|(name, left, right)| {
                let (mark, style) = mark(left == right);
                vec![
                    Cell::styled(mark, style),
                    name.into(),
                    left.into(),
                    right.into(),
                ]
            })
            .collect();
        paper.table(&columns, &rows);
        for difference in comparison.differences.iter().take(5) {
            let text = format!(
                "{}: balance {} and {}, held {} and {}",
                difference.account,
                self.amount(difference.expected.balance),
                self.amount(difference.found.balance),
                self.amount(difference.expected.held),
                self.amount(difference.found.held),
            );
            paper.line(&[(&text, Style::Bad)]);
        }
    }

    /// (what, as reckoned, in the ledger)
    fn lines(&self, comparison: &Comparison) -> [(&'static str, String, String); 8] {
        let (expected, found) = (comparison.expected, comparison.found);
        let amounts = |name, left, right| (name, self.amount(left), self.amount(right));
        let counts = |name, left, right| (name, grouped(left), grouped(right));
        let accounts = comparison.accounts as u64;
        let equal = accounts - comparison.difference_count as u64;
        [
            counts("accounts equal in balance and hold", accounts, equal),
            amounts("sum of balances", expected.balance, found.balance),
            amounts("held", expected.held, found.held),
            counts("jobs charged", expected.jobs.charges, found.jobs.charges),
            counts("refunded", expected.jobs.refunds, found.jobs.refunds),
            counts("taken back", expected.jobs.reclaims, found.jobs.reclaims),
            counts("delivered", expected.jobs.delivered, found.jobs.delivered),
            counts(
                "not delivered",
                expected.jobs.not_delivered,
                found.jobs.not_delivered,
            ),
        ]
    }
}

/// What a check of the audit says; nothing for one that is not known here.
fn meaning(check: &str) -> &'static str {
    match check {
        "file" => "pages, indexes and tables are as they were made",
        "events" => "every event can be read",
        "positions" => "no holes, and time does not run back",
        "streams" => "no holes in revisions",
        "jobs" => "each is legal, and has paid its cost or nothing",
        "timers" => "nothing waits without a deadline",
        "account_state" => "the figures that guard charges are the log's",
        "checkpoints" => "stand where they say",
        "entries" | "daily_usage" | "job_rows" | "contradictions" | "due" | "dead_letters" => {
            "the rows are the log's"
        }
        _ => "",
    }
}

const fn mark(is_right: bool) -> (&'static str, Style) {
    if is_right {
        ("✔", Style::Good)
    } else {
        ("✘", Style::Bad)
    }
}
