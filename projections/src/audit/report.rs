//! What an audit says.

use std::fmt;

use recoup::Position;
use serde::Serialize;

/// How many findings are kept; all of them are counted.
pub const MAX_FINDINGS: usize = 1_000;

/// What an audit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// What was checked, and how much of it.
    pub checks: Vec<Check>,
    /// How many findings there are, also of those that were not kept.
    pub violations: u64,
    /// The findings, at most [`MAX_FINDINGS`], in the order in which they were made.
    pub findings: Vec<Finding>,
    /// The head of the log in the audit's snapshot.
    pub position: Position,
    /// How many events were read.
    pub events: u64,
}

/// One thing that an audit checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// How many events, streams, jobs, accounts or rows it looked at.
    pub checked: u64,
    /// How many findings it made.
    pub violations: u64,
}

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check that made it.
    pub check: &'static str,
    /// Which event, stream, job, account or row.
    pub subject: String,
    /// What is wrong.
    pub what: String,
    /// What the log calls for, where the finding is a difference; none if nothing should be there.
    pub expected: Option<String>,
    /// What was found instead; none if nothing was.
    pub found: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.check, self.subject, self.what)?;
        match (&self.expected, &self.found) {
            (None, None) => Ok(()),
            (Some(expected), Some(found)) => write!(f, ": expected {expected}, found {found}"),
            (Some(expected), None) => write!(f, ": expected {expected}"),
            (None, Some(found)) => write!(f, ": found {found}"),
        }
    }
}

/// The checks, in the order in which they are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// Pages and indexes agree, and the schema is as it was made.
    File,
    /// Every event can be read, and its id is that of its place and command.
    Events,
    /// Positions have no holes, and time does not run back.
    Positions,
    /// Revisions have no holes, and a stream holds what its name says.
    Streams,
    /// Every job is legal, and nets 0 or −cost.
    Jobs,
    /// No live job is without a timer.
    Timers,
    /// The figures that guard charges are the log's.
    AccountState,
    /// Checkpoints stand where they say in this log.
    Checkpoints,
    /// The rows of the projections are the log's.
    Entries,
    DailyUsage,
    JobRows,
    Contradictions,
    Due,
    DeadLetters,
}

impl Area {
    const ALL: [Self; 14] = [
        Self::File,
        Self::Events,
        Self::Positions,
        Self::Streams,
        Self::Jobs,
        Self::Timers,
        Self::AccountState,
        Self::Checkpoints,
        Self::Entries,
        Self::DailyUsage,
        Self::JobRows,
        Self::Contradictions,
        Self::Due,
        Self::DeadLetters,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Events => "events",
            Self::Positions => "positions",
            Self::Streams => "streams",
            Self::Jobs => "jobs",
            Self::Timers => "timers",
            Self::AccountState => "account_state",
            Self::Checkpoints => "checkpoints",
            Self::Entries => "entries",
            Self::DailyUsage => "daily_usage",
            Self::JobRows => "job_rows",
            Self::Contradictions => "contradictions",
            Self::Due => "due",
            Self::DeadLetters => "dead_letters",
        }
    }
}

/// The named values of a row, as a finding shows them.
pub(super) type Fields = Vec<(&'static str, String)>;

/// Collects what the checks find.
#[derive(Default)]
pub(super) struct Report {
    checked: [u64; Area::ALL.len()],
    violations: [u64; Area::ALL.len()],
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn count(&mut self, area: Area, checked: u64) {
        let count = &mut self.checked[area as usize];
        *count = count.saturating_add(checked);
    }

    /// Something is wrong in itself.
    pub(super) fn wrong(&mut self, area: Area, subject: impl fmt::Display, what: String) {
        self.find(area, subject, what, (None, None));
    }

    /// One value is another one than it should be.
    pub(super) fn differs(
        &mut self,
        area: Area,
        subject: impl fmt::Display,
        what: &str,
        (expected, found): (impl fmt::Display, impl fmt::Display),
    ) {
        let values = (Some(expected.to_string()), Some(found.to_string()));
        self.find(area, subject, what.to_owned(), values);
    }

    /// A row is another one than the log calls for, is missing, or should not be there: shows the values that differ.
    pub(super) fn row(
        &mut self,
        area: Area,
        subject: impl fmt::Display,
        (expected, found): (Option<Fields>, Option<Fields>),
    ) {
        let text = |fields: &Fields, others: Option<&Fields>| {
            let is_shown =
                |field: &&(&str, String)| others.is_none_or(|others| !others.contains(field));
            let shown = fields.iter().filter(is_shown);
            let words: Vec<String> = shown
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            words.join(", ")
        };
        let what = match (&expected, &found) {
            (Some(_), Some(_)) => "the row differs",
            (Some(_), None) => "the row is missing",
            (None, _) => "the log has nothing for this row",
        };
        let values = (
            expected.as_ref().map(|fields| text(fields, found.as_ref())),
            found.as_ref().map(|fields| text(fields, expected.as_ref())),
        );
        self.find(area, subject, what.to_owned(), values);
    }

    fn find(
        &mut self,
        area: Area,
        subject: impl fmt::Display,
        what: String,
        (expected, found): (Option<String>, Option<String>),
    ) {
        let count = &mut self.violations[area as usize];
        *count = count.saturating_add(1);
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding {
                check: area.name(),
                subject: subject.to_string(),
                what,
                expected,
                found,
            });
        }
    }

    pub(super) fn finish(self, position: Position, events: u64) -> Audit {
        let checks = Area::ALL.map(|area| Check {
            name: area.name(),
            checked: self.checked[area as usize],
            violations: self.violations[area as usize],
        });
        Audit {
            violations: self.violations.iter().sum(),
            checks: checks.into(),
            findings: self.findings,
            position,
            events,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_is_counted_and_the_first_thousand_kept() {
        let mut report = Report::default();
        for number in 0..1_500 {
            report.wrong(
                Area::Jobs,
                format_args!("job {number}"),
                "is odd".to_owned(),
            );
        }
        let audit = report.finish(Position::START, 0);
        assert_eq!(
            (audit.violations, audit.findings.len()),
            (1_500, MAX_FINDINGS)
        );
        assert_eq!(audit.findings[0].to_string(), "jobs: job 0: is odd");
        let names: Vec<_> = Area::ALL.iter().map(|area| area.name()).collect();
        for (index, check) in audit.checks.iter().enumerate() {
            assert_eq!(
                (check.name, Area::ALL[index] as usize),
                (names[index], index)
            );
        }
    }

    #[test]
    fn a_row_shows_only_what_differs() {
        let mut report = Report::default();
        let row = |charged: &str| vec![("charged", charged.to_owned()), ("jobs", "1".to_owned())];
        report.row(Area::DailyUsage, "acme", (Some(row("40")), Some(row("39"))));
        report.row(Area::DailyUsage, "acme", (None, Some(row("39"))));
        let audit = report.finish(Position::START, 0);
        let texts: Vec<_> = audit.findings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "daily_usage: acme: the row differs: expected charged 40, found charged 39",
                "daily_usage: acme: the log has nothing for this row: found charged 39, jobs 1",
            ]
        );
    }
}
