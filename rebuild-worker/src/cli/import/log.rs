//! A whole log, taken into an empty ledger: with ids, instants and bytes as they were.
//!
//! All of it in one transaction: a line that is wrong leaves the ledger empty. A ledger that is created for it gets the zone and the scale of
//! the file.

use indicatif::ProgressBar;
use recoup::store::{ImportError, LogImport, StoreError};
use recoup::{Clock, Position, SystemClock};
use serde_json::{Value, json};

use super::input::{Input, Lines, Unreadable};
use crate::cli::answer::{Answer, complain};
use crate::cli::session::Global;
use crate::cli::table::counted;
use crate::exit::Exit;
use crate::log_form::{Head, Line, Summing};

/// What stopped it.
enum Stop {
    Wrong(Wrong),
    Store(StoreError),
}

/// What is wrong with the file or the ledger.
enum Wrong {
    Line { number: u64, cause: String },
    NotEmpty,
}

impl From<Wrong> for Stop {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Takes over the log in `input`, whose first line is `first`.
pub(super) async fn run(
    global: &Global,
    input: Input,
    first: &[u8],
    bar: ProgressBar,
) -> anyhow::Result<Answer> {
    let (head, zone, scale) = match Head::parse(first) {
        Ok(head) => head,
        Err(cause) => return Ok(answer(&Err(Wrong::Line { number: 1, cause }), None)),
    };
    let session = global.open_as(zone, scale).await?;
    let lines = input.into_lines();
    let watch = bar.clone();
    let now = SystemClock.now();
    let taken = session
        .database
        .write(move |tx| {
            let mut import = LogImport::begin(tx, now).map_err(|error| stop(1, error))?;
            let (events, last) = take(&mut import, lines, &watch)?;
            import.finish().map_err(|error| stop(last, error))?;
            Ok(events)
        })
        .await;
    bar.finish_and_clear();
    let taken = match taken {
        Ok(events) => Ok(events),
        Err(Stop::Wrong(wrong)) => Err(wrong),
        Err(Stop::Store(error)) => return Err(error.into()),
    };
    Ok(answer(&taken, head.head))
}

fn stop(number: u64, error: ImportError) -> Stop {
    match error {
        ImportError::NotEmpty => Wrong::NotEmpty.into(),
        ImportError::Event(cause) => Wrong::Line { number, cause }.into(),
        ImportError::Store(error) => Stop::Store(error),
    }
}

/// Takes every line. Gives the number of events and of the last line.
fn take(
    import: &mut LogImport<'_>,
    mut lines: Lines,
    bar: &ProgressBar,
) -> Result<(u64, u64), Stop> {
    let mut summing = Summing::default();
    let (mut before, mut number) = (Position::START, 0);
    let mut end = None;
    loop {
        let (at, text) = match lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(Unreadable { number, cause }) => return Err(Wrong::Line { number, cause }.into()),
        };
        number = at;
        let wrong = |cause: String| Stop::from(Wrong::Line { number: at, cause });
        if end.is_some() {
            return Err(wrong("a line behind the end of the log".to_owned()));
        }
        if summing.events == 0 && at == 1 {
            summing.add(text);
            continue;
        }
        match Line::parse(text).map_err(wrong)? {
            Line::End(said) => {
                if said != summing.end() {
                    let cause = "the lines before are not those that were written: their number or digest differs";
                    return Err(wrong(cause.to_owned()));
                }
                end = Some(said);
            }
            Line::Event(event) => {
                summing.add(text);
                summing.events += 1;
                if event.position <= before {
                    let cause = format!("position {} after position {before}", event.position);
                    return Err(wrong(cause));
                }
                before = event.position;
                import.push(event).map_err(|error| stop(at, error))?;
            }
        }
        bar.set_position(lines.bytes_read());
    }
    if end.is_none() {
        let cause = "the log has no end line: the file was cut short".to_owned();
        let number = number + 1;
        return Err(Wrong::Line { number, cause }.into());
    }
    Ok((summing.events, number))
}

fn answer(taken: &Result<u64, Wrong>, head: Option<i64>) -> Answer {
    let (events, error, exit) = match taken {
        Ok(events) => (*events, Value::Null, Exit::Done),
        Err(Wrong::Line { number, cause }) => {
            complain(&format!(
                "line {number}: {cause}; nothing of the log was taken"
            ));
            (0, json!({ "line": number, "cause": cause }), Exit::Failed)
        }
        Err(Wrong::NotEmpty) => {
            let cause = ImportError::NotEmpty.to_string();
            complain(&cause);
            (
                0,
                json!({ "line": 1, "cause": cause, "code": "not_empty" }),
                Exit::Failed,
            )
        }
    };
    let document = json!({
        "log": true,
        "lines": events,
        "applied": events,
        "already_applied": 0,
        "noted": 0,
        "rejected": 0,
        "rejections": [],
        "error": error,
        "source_head": head,
    });
    Answer::new(
        exit,
        document,
        format!("{} taken over", counted(events, "event")),
    )
}
