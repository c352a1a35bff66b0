//! The facts as a page of text, at most 100 columns wide.
//!
//! This file has the order of the sections, the head and the end; `books` has what a ledger is about, `proof` why to believe it.

mod books;
mod proof;

use std::time::Duration;

use recoup::Scale;

use super::facts::Facts;
use super::paper::{Cell, Paper, Style, grouped};

/// The widest that a text from outside (a file's name, a reason) is shown.
const TEXT_COLUMNS: usize = 34;

/// The widest that a line of its own is.
const LINE_COLUMNS: usize = 98;

/// Writes the whole page.
pub(super) fn page(paper: &mut Paper, facts: &Facts, program: &str) {
    let page = Page {
        facts,
        scale: facts.scale,
    };
    page.head(paper);
    page.answers(paper);
    page.jobs(paper);
    page.balances(paper, &facts.balances);
    page.usage(paper);
    if let Some(statement) = &facts.statement {
        page.statement(paper, statement);
    }
    match &facts.life {
        Some(life) => page.life(paper, life),
        None => paper.section(
            "One job",
            "none was refunded and then delivered in this trace",
        ),
    }
    page.contradictions(paper);
    if let Some(rebuilt) = &facts.rebuilt {
        page.rebuilt(paper, rebuilt);
    }
    page.audit(paper);
    page.comparison(paper, &facts.comparison);
    page.verdict(paper);
    page.next(paper, program);
}

struct Page<'a> {
    facts: &'a Facts,
    scale: Scale,
}

impl Page<'_> {
    fn amount(&self, amount: i64) -> String {
        self.scale.show(amount)
    }

    fn signed(&self, amount: i64) -> Cell {
        match amount {
            1.. => Cell::styled(format!("+{}", self.amount(amount)), Style::Good),
            0 => Cell::styled("0", Style::Faint),
            _ => self.amount(amount).into(),
        }
    }

    fn head(&self, paper: &mut Paper) {
        let (simulated, input) = (&self.facts.simulated, &self.facts.input);
        paper.section(
            "recoup demo",
            "a credit ledger lives through three simulated days",
        );
        let time = if simulated.haste == 1 {
            format!(
                "simulated, injected clock: {} to {} {}; the second midnight ends a month",
                simulated.first_day, simulated.last_day, simulated.zone
            )
        } else {
            format!(
                "the server's clock, {} {}; the plan's days pass {} times as fast",
                simulated.last_day,
                simulated.zone,
                grouped(u64::from(simulated.haste))
            )
        };
        let stretched = if input.span_s > input.simulated_span_s {
            "squeezed into"
        } else {
            "stretched over"
        };
        let requests = format!(
            "{}: {} of {}, {stretched} {}",
            shorten(&input.source, 40),
            plural(input.requests, "request", "requests"),
            duration(input.span_s),
            duration(input.simulated_span_s),
        );
        let made_up = format!(
            "accounts (a hash of the row), prices, grants, caps, all faults and duplicates; seed {}",
            simulated.seed
        );
        let sent: u64 = self
            .facts
            .answers
            .iter()
            .map(|answers| answers.tally.sent)
            .sum();
        let run = format!(
            "{} tasks sent {} commands, which became {} events, in {:.1} s",
            simulated.tasks,
            grouped(sent),
            grouped(self.facts.audit.events),
            Duration::from_millis(simulated.took_ms).as_secs_f64(),
        );
        let origin = if input.is_cited { "source" } else { "format" };
        let mut lines = vec![
            ("time", time),
            ("input", requests),
            (origin, input.citation.to_owned()),
            ("made up", made_up),
            ("run", run),
        ];
        if input.free_requests > 0 {
            let free = plural(input.free_requests, "request has", "requests have");
            lines.push((
                "left out",
                format!("{free} no token: what costs nothing is no job"),
            ));
        }
        for (name, text) in lines {
            paper.line(&[(&format!("{name:<9}"), Style::Faint), (&text, Style::Plain)]);
        }
    }

    fn verdict(&self, paper: &mut Paper) {
        let facts = self.facts;
        paper.line(&[]);
        if facts.is_clean() {
            let text = "clean: the log, the projections and the reckoning agree; every job was paid once or not at all";
            paper.line(&[("✔ ", Style::Good), (text, Style::Good)]);
        } else {
            let text = format!(
                "NOT clean: {} in the audit, {} from the reckoning",
                plural(
                    usize::try_from(facts.audit.violations).unwrap_or(usize::MAX),
                    "violation",
                    "violations"
                ),
                plural(
                    facts.comparison.difference_count,
                    "account differs",
                    "accounts differ"
                ),
            );
            paper.line(&[("✘ ", Style::Bad), (&text, Style::Bad)]);
        }
        let same = if facts.simulated.haste == 1 {
            "the same input ends with the same balances; chance decides positions, answers to copies, and"
        } else {
            "chance decides positions, answers to copies, what a slow moment made late, and"
        };
        let races = format!(
            "whether each of {} whose failure and success raced shows a reclaim or a contradiction",
            plural(
                usize::try_from(facts.races).unwrap_or(usize::MAX),
                "job",
                "jobs"
            )
        );
        paper.line(&[(same, Style::Faint)]);
        paper.line(&[(&races, Style::Faint)]);
    }

    fn next(&self, paper: &mut Paper, program: &str) {
        let facts = self.facts;
        let explained = if facts.kept.is_some() {
            "look around in the ledger"
        } else {
            "keep a ledger, and look around in it"
        };
        paper.section("Next", explained);
        let store = facts.kept.as_ref().map(|kept| kept.store.clone());
        let path = store.unwrap_or_else(|| {
            paper.line(&[
                (program, Style::Plain),
                (" demo --keep demo-ledger", Style::Plain),
            ]);
            "sqlite:demo-ledger/recoup.db".to_owned()
        });
        let mut export = format!("export RECOUP_STORE={}", quoted(&path));
        if let Some(db) = facts.kept.as_ref().and_then(|kept| kept.db.as_deref()) {
            export.push_str(&format!(" RECOUP_DB={}", quoted(db)));
        }
        paper.line(&[(&export, Style::Plain)]);
        let job = facts
            .life
            .as_ref()
            .map_or("req-00001", |life| life.job.as_str());
        let account = facts
            .balances
            .shown
            .first()
            .map_or("acct-001", |first| first.account.as_str());
        let of_job = format!("{program} job show {job}");
        let of_account = format!("{program} account entries {account}");
        let rest = ["rebuild --verify", "audit"].map(|verb| format!("{program} {verb}"));
        for command in [of_job, of_account].iter().chain(&rest) {
            paper.line(&[(command, Style::Plain)]);
        }
    }
}

fn count(number: u64) -> Cell {
    if number == 0 {
        faint("0")
    } else {
        grouped(number).into()
    }
}

fn faint(text: &str) -> Cell {
    Cell::styled(text, Style::Faint)
}

fn plural(number: usize, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        grouped(number as u64),
        if number == 1 { one } else { many }
    )
}

/// In the largest unit that gives three or more: `57 min`, `66 h`, `7 days`.
fn duration(seconds: f64) -> String {
    let units = [(86_400.0, "days"), (3_600.0, "h"), (60.0, "min")];
    let fits = |(length, _): &&(f64, &str)| seconds >= 3.0 * length;
    match units.iter().find(fits) {
        Some((length, unit)) => format!("{:.0} {unit}", seconds / length),
        None => format!("{seconds:.0} s"),
    }
}

/// `2023-11-29T23:58:30.000000Z` as `11-29 23:58:30`: the year is said once, at the top.
fn short(at: &str) -> String {
    at.get(5..19)
        .map_or_else(|| at.to_owned(), |at| at.replace('T', " "))
}

fn shorten(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars()
        .take(columns.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// As a shell takes it for one word.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
