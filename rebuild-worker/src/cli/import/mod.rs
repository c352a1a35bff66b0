//! `recoup import FILE`: a file of commands, one JSON object a line, carried out in order.
//!
//! The file is read twice: once for its digest, once for its commands, since the id of each command is a UUIDv5 over digest and
//! line number. So a file can be given again, after a crash or by mistake: what was applied answers `already_applied`, line by
//! line ([`earlier`]).
//!
//! Commands go through the ledger's batch call in chunks that are cut so that every outcome, and the log, is what carrying out line after
//! line would give ([`plan`]). Windows of [`WINDOW`] lines bound the memory; a line has at most [`input::MAX_LINE_BYTES`].
//!
//! A line that cannot be read stops the import: what stands before it is applied, nothing of it. A line that a rule rejects is reported
//! and the import goes on. While another process works on the same jobs at the same moment, a line that loses a race to it may be
//! carried out behind later lines of its chunk, as if it had come that much later.

mod backfill;
mod earlier;
mod input;
mod line;
mod log;
mod plan;
mod report;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use recoup::ledger::LedgerError;
use recoup::{Command, CommandId, Ledger, ManualClock, Timestamp};

use self::earlier::Earlier;
use self::input::{Input, Lines, Unreadable};
use self::line::Instants;
use self::plan::{Place, Plan};
use self::report::Tally;
use super::answer::{Answer, complain, usage};
use super::session::Global;
use crate::log_form::Head;

pub(super) use line::parse_price;

/// How many lines are read ahead, and carried out together where their order allows it.
const WINDOW: usize = 1_000;

/// Which file, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// JSON lines of commands; - reads stdin.
    file: PathBuf,
    /// Take each line's instant from its `at`, into an empty ledger, which takes nothing else until --close.
    #[arg(long)]
    backfill: bool,
    /// End the backfill behind the last line: open jobs end by their timers, and the ledger is as any other.
    #[arg(long, requires = "backfill")]
    close: bool,
}

/// One command of the file.
#[derive(Debug, Clone)]
struct Line {
    number: u64,
    id: CommandId,
    command: Command,
    /// When it happened, in a backfill.
    at: Option<Timestamp>,
}

/// What ended an import before the end of its file.
enum Stop {
    /// A line that cannot be read.
    Line { number: u64, cause: String },
    /// A command that has no answer.
    Ledger { number: u64, error: LedgerError },
}

impl Stop {
    const fn number(&self) -> u64 {
        match self {
            Self::Line { number, .. } | Self::Ledger { number, .. } => *number,
        }
    }
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    // A wrong store is told before a long file is read.
    global.place()?;
    let mut input = Input::open(&args.file)?;
    let first = input
        .first_line()
        .with_context(|| format!("{} cannot be read", args.file.display()))?;
    if Head::begins(&first) {
        let bar = progress(&args.file, input.bytes());
        if args.backfill {
            return Err(usage(
                "an exported log has its instants: it needs no --backfill",
            ));
        }
        global.refuse_log("an exported log keeps its instants, and KurrentDB stamps events by its own clock: it is taken over into sqlite: or postgres:")?;
        return log::run(global, input, &first, bar).await;
    }
    if args.backfill {
        global.refuse_log("a backfill posts events into the past, and KurrentDB stamps them by its own clock: it is for sqlite: and postgres:")?;
        return backfill::run(global, (&args.file, input), args.close).await;
    }
    let session = global.open().await?;
    let bar = progress(&args.file, input.bytes());
    let earlier = Earlier::of(input.digest(), input.lines());
    let digest = input.digest();
    let mut import = Import::new(&session.ledger, earlier);
    let stopped = import.carry_out(input.into_lines(), &bar).await.err();
    bar.finish_and_clear();
    let answer = import.tally.answer(session.scale, digest, stopped.as_ref());
    if let Some(stop) = &stopped {
        complain(&report::explain_stop(stop));
    }
    Ok(answer)
}

/// A bar on a terminal, nothing elsewhere.
fn progress(file: &Path, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(file.display().to_string());
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// An import on its way.
struct Import<'a> {
    ledger: &'a Ledger,
    earlier: Earlier,
    tally: Tally,
    window: usize,
    instants: Instants,
    /// The clock of a backfill; what is before the instant beside it was carried out by an earlier run.
    backfill: Option<(ManualClock, Timestamp)>,
    /// The last line's instant.
    last_at: Timestamp,
    /// Lines that came to nothing in an earlier run.
    passed_over: u64,
}

impl<'a> Import<'a> {
    fn new(ledger: &'a Ledger, earlier: Earlier) -> Self {
        Self {
            ledger,
            earlier,
            tally: Tally::default(),
            window: WINDOW,
            instants: Instants::Refused,
            backfill: None,
            last_at: Timestamp::from_micros(i64::MIN),
            passed_over: 0,
        }
    }

    async fn carry_out(&mut self, mut lines: Lines, bar: &ProgressBar) -> Result<(), Stop> {
        loop {
            let (window, ended) = self.read_window(&mut lines);
            let is_last = ended.is_err() || window.len() < self.window;
            self.carry_out_instants(window).await?;
            bar.set_position(lines.bytes_read());
            ended?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// The next lines, and why there are no more if a line cannot be read.
    fn read_window(&mut self, lines: &mut Lines) -> (Vec<Line>, Result<(), Stop>) {
        let mut window = Vec::with_capacity(self.window);
        while window.len() < self.window {
            let line = match lines.next() {
                Ok(None) => break,
                Ok(Some((number, text))) => line::parse(text, self.ledger, self.instants)
                    .map_err(|cause| Stop::Line { number, cause })
                    .and_then(|(command, at)| {
                        self.check_instant(number, at)?;
                        let id = self.earlier.id(number);
                        Ok(Line {
                            number,
                            id,
                            command,
                            at,
                        })
                    }),
                Err(Unreadable { number, cause }) => Err(Stop::Line { number, cause }),
            };
            match line {
                Ok(line) => window.push(line),
                Err(stop) => return (window, Err(stop)),
            }
        }
        (window, Ok(()))
    }

    /// Carries out a window: lines of one instant go together.
    async fn carry_out_instants(&mut self, window: Vec<Line>) -> Result<(), Stop> {
        let mut rest = window.into_iter().peekable();
        let mut passed_over = Vec::new();
        while let Some(at) = rest.peek().map(|line| line.at) {
            let is_new = self.turn_clock(at);
            let mut together = Vec::new();
            while let Some(line) = rest.next_if(|line| line.at == at) {
                together.push(line);
            }
            if is_new {
                self.carry_out_window(together).await?;
            } else {
                passed_over.append(&mut together);
            }
        }
        self.tell_passed_over(passed_over).await
    }

    async fn carry_out_window(&mut self, window: Vec<Line>) -> Result<(), Stop> {
        let ledger = self.ledger;
        let mut plan = Plan::new(ledger, &mut self.earlier);
        plan.prefetch(&window).await;
        let mut chunk: Vec<Line> = Vec::new();
        for line in window {
            loop {
                match plan.place(&line).await {
                    Place::Join => {
                        chunk.push(line);
                        break;
                    }
                    Place::Told(told) => {
                        self.tally.count(line.number, told);
                        break;
                    }
                    Place::Alone if chunk.is_empty() => {
                        send(ledger, &mut self.tally, vec![line]).await?;
                        plan.begin_chunk();
                        break;
                    }
                    // Placed again, before an empty chunk.
                    Place::Behind | Place::Alone => {
                        send(ledger, &mut self.tally, std::mem::take(&mut chunk)).await?;
                        plan.begin_chunk();
                    }
                }
            }
        }
        send(ledger, &mut self.tally, chunk).await
    }
}

/// Carries out a chunk. Every answer is counted, also behind the first line that has none.
async fn send(ledger: &Ledger, tally: &mut Tally, chunk: Vec<Line>) -> Result<(), Stop> {
    if chunk.is_empty() {
        return Ok(());
    }
    let numbers: Vec<u64> = chunk.iter().map(|line| line.number).collect();
    let commands = chunk
        .into_iter()
        .map(|line| (line.id, line.command))
        .collect();
    let answers = ledger.batch(commands).await;
    let mut stopped = Ok(());
    for (number, answer) in numbers.into_iter().zip(answers) {
        match answer {
            Ok(outcome) => tally.count(number, outcome.into()),
            Err(error) if stopped.is_ok() => stopped = Err(Stop::Ledger { number, error }),
            Err(_) => {}
        }
    }
    stopped
}
