//! `recoup rebuild`: folds days again from the log, compares them with what is shown, and repairs what differs.
//!
//! It may run while everything else does, and any number at once. SIGINT and SIGTERM cancel it between two transactions; rows are as they were or as
//! they should be. Exit code 4 says that something differed, also when it was repaired.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ArgGroup;
use indicatif::{ProgressBar, ProgressStyle};
use recoup::{AccountId, Day, Scale};
use recoup_projections::Projections;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, complain, usage};
use super::session::{Global, Session};
use super::table::{Column, counted, table};
use crate::exit::Exit;
use crate::rebuild::{
    Control, Difference, Mode, Origin, Progress, Request, Run, Window, differences, rebuild,
};
use crate::signals::Signals;

/// How many differences an answer shows; all of them are on record, in the table `rebuild_differences`.
const SHOWN: usize = 10_000;

/// How often a line of progress is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Which days, and whether to repair.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("days").args(["window", "from", "all"]))]
pub(super) struct Args {
    /// The last so many days of the ledger's zone, today included.
    #[arg(long, value_name = "DAYS", default_value = "2d")]
    window: Window,
    /// From this day on, such as 2026-11-29.
    #[arg(long, value_name = "DAY", value_parser = Day::parse, requires = "to")]
    from: Option<Day>,
    /// Up to this day, included.
    #[arg(long, value_name = "DAY", value_parser = Day::parse, requires = "from")]
    to: Option<Day>,
    /// Every day, and account figures too.
    #[arg(long)]
    all: bool,
    /// This account only.
    #[arg(long, value_name = "ID")]
    account: Option<AccountId>,
    /// Report what differs and repair nothing.
    #[arg(long)]
    verify: bool,
}

impl Args {
    fn request(self) -> anyhow::Result<Request> {
        let window = match (self.all, self.from.zip(self.to)) {
            (true, _) => Window::All,
            (false, Some((from, to))) => {
                Window::days(from, to).map_err(|error| usage(error.to_string()))?
            }
            (false, None) => self.window,
        };
        Ok(Request {
            window,
            account: self.account,
            mode: if self.verify {
                Mode::Verify
            } else {
                Mode::Repair
            },
            origin: Origin::Operator,
        })
    }
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    let request = args.request()?;
    let session = global.open().await?;
    let projections = Projections::open(session.database.clone()).await?;
    // What is shown is compared as of its checkpoint: a projection that cannot be brought forward is no obstacle.
    if let Err(error) = projections.catch_up().await {
        complain(&format!(
            "warning: projections were not brought forward: {error}"
        ));
    }
    let watch = Watch::new();
    let control = Control {
        stop: CancellationToken::new(),
        progress: watch.progress(),
    };
    let interrupted = interrupted(control.stop.clone())?;
    let run = rebuild(&projections, &request, &control).await;
    interrupted.abort();
    watch.finish();
    let run = run?;
    let found = differences(&session.database, run.run, None, SHOWN).await?;
    Ok(answer(&session, &run, &found))
}

/// Cancels at the first signal.
fn interrupted(stop: CancellationToken) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let mut signals = Signals::listen()?;
    Ok(tokio::spawn(async move {
        signals.next().await;
        stop.cancel();
        // Whoever asks again does not want to wait: what was committed is whole.
        signals.next().await;
        std::process::exit(i32::from(Exit::Failed.code()));
    }))
}

/// Progress on stderr: a bar on a terminal, a line now and then elsewhere.
struct Watch {
    bar: ProgressBar,
    last_line: Arc<Mutex<Instant>>,
}

impl Watch {
    fn new() -> Self {
        let bar = ProgressBar::no_length();
        let template = "{msg:8} {wide_bar} {human_pos}/{human_len} events {per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self {
            bar,
            last_line: Arc::new(Mutex::new(Instant::now())),
        }
    }

    fn progress(&self) -> Arc<dyn Fn(Progress) + Send + Sync> {
        let (bar, last_line) = (self.bar.clone(), Arc::clone(&self.last_line));
        let is_terminal = std::io::stderr().is_terminal();
        Arc::new(move |progress: Progress| {
            let Progress {
                phase,
                events_read,
                events_total,
            } = progress;
            if is_terminal {
                bar.set_length(events_total.max(events_read));
                bar.set_message(phase);
                bar.set_position(events_read);
                return;
            }
            let mut last_line = last_line.lock().unwrap_or_else(PoisonError::into_inner);
            if last_line.elapsed() >= LINE_EVERY {
                *last_line = Instant::now();
                complain(&format!("{phase}: {events_read} of {events_total} events"));
            }
        })
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn answer(session: &Session, run: &Run, found: &[Difference]) -> Answer {
    let shown: Vec<Value> = found.iter().map(difference_document).collect();
    let document = json!({
        "run": run.run,
        "mode": run.mode,
        "state": run.state,
        "scope": run.scope,
        "account": run.account,
        "from": run.from,
        "to": run.to,
        "position": run.position,
        "events_read": run.events_read,
        "rows_checked": run.rows_checked,
        "rows_different": run.rows_different,
        "rows_recurring": run.rows_recurring,
        "worst_ratio": run.worst_ratio,
        "differences": shown,
        "differences_left_off": run.rows_different.saturating_sub(i64::try_from(found.len()).unwrap_or(i64::MAX)).max(0),
        "duration_ms": run.duration_ms,
        "scale": session.scale.get(),
    });
    let exit = if run.rows_different > 0 {
        Exit::Violations
    } else {
        Exit::Done
    };
    Answer::new(exit, document, text(session.scale, run, found))
}

fn difference_document(found: &Difference) -> Value {
    let row = |row: &Option<String>| -> Value {
        row.as_deref()
            .and_then(|row| serde_json::from_str(row).ok())
            .unwrap_or(Value::Null)
    };
    json!({
        "relation": found.relation,
        "account": found.account,
        "day": found.day,
        "kind": found.kind,
        "before": row(&found.before),
        "after": row(&found.after),
        "recurring": found.is_recurring,
    })
}

fn text(scale: Scale, run: &Run, found: &[Difference]) -> String {
    let checked = u64::try_from(run.rows_checked).unwrap_or(0);
    let days = if run.from == run.to {
        run.from.clone()
    } else {
        format!("{} to {}", run.from, run.to)
    };
    let mut lines = Vec::new();
    if !found.is_empty() {
        let columns = [
            Column::Text("what"),
            Column::Text("account"),
            Column::Text("day"),
            Column::Text("kind"),
            Column::Text("shown"),
            Column::Text("by the log"),
        ];
        let none = || "none".to_owned();
        let rows = found.iter().map(|found| {
            let what = if found.is_recurring {
                format!("{} (recurring)", found.relation)
            } else {
                found.relation.clone()
            };
            let text =
                |row: &Option<String>| row.as_deref().map_or_else(none, |row| brief(scale, row));
            vec![
                what,
                found.account.clone(),
                found.day.clone().unwrap_or_default(),
                found.kind.clone().unwrap_or_default(),
                text(&found.before),
                text(&found.after),
            ]
        });
        lines.push(table(&columns, rows));
    }
    let done = match (run.rows_different, run.mode.as_str()) {
        (0, _) => "all as the log has them".to_owned(),
        (different, "repair") => {
            let reported = found.iter().any(|found| found.relation == "balance");
            let hint = "; a balance that is not the sum of its entries is only reported: see audit, rebuild --all";
            format!(
                "{different} differed, and were repaired{}",
                if reported { hint } else { "" }
            )
        }
        (different, _) => format!("{different} differ; run it without --verify to repair them"),
    };
    let ratio = run
        .worst_ratio
        .filter(|_| run.rows_different > 0)
        .map(|ratio| format!(", at worst {ratio:.2} times the truth"))
        .unwrap_or_default();
    lines.push(format!(
        "run {}, {days}, at position {}: {} from {} events: {done}{ratio}",
        run.run,
        run.position,
        counted(checked, "row"),
        run.events_read,
    ));
    lines.join("\n")
}

/// A row in few words.
fn brief(scale: Scale, row: &str) -> String {
    let Ok(Value::Object(fields)) = serde_json::from_str(row) else {
        return row.to_owned();
    };
    let shown = fields.iter().map(|(name, value)| match value.as_i64() {
        _ if name == "last_position" => String::new(),
        Some(count) if name == "jobs" => format!("jobs {count}"),
        Some(amount) => format!("{name} {}", scale.show(amount)),
        None if value.is_null() => String::new(),
        None => month_in_few_words(scale, value),
    });
    let shown: Vec<String> = shown.filter(|text| !text.is_empty()).collect();
    shown.join(", ")
}

/// Figures by month: {"2026-11": {"spent": …}}.
fn month_in_few_words(scale: Scale, months: &Value) -> String {
    let months = months.as_object().into_iter().flatten();
    let shown = months.map(|(month, figures)| {
        let number = |name: &str| figures.get(name).and_then(Value::as_i64).unwrap_or(0);
        format!(
            "{month}: spent {}, held {}",
            scale.show(number("spent")),
            scale.show(number("held"))
        )
    });
    shown.collect::<Vec<_>>().join(", ")
}
