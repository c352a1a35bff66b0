//! `recoup export FILE`: the log as JSON lines ([`crate::log_form`]), to its head as of the beginning; `-` writes to stdout.
//!
//! A file is complete or not there: it grows under another name, and takes no file's place. Bound: one page of [`PAGE`] events.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use recoup::store::{EventStore, RecordedEvent};
use recoup::{Position, Scale};
use serde_json::json;

use super::answer::{Answer, complain};
use super::session::{Global, Session};
use super::table::counted;
use crate::exit::Exit;
use crate::log_form::{Head, Summing, event_line};
use crate::signals::Signals;

/// How many events are read at a time.
const PAGE: usize = 5_000;

/// Where to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file that is not there yet; - writes to stdout.
    file: PathBuf,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    let session = global.open_existing().await?;
    let is_stdout = args.file.as_os_str() == "-";
    if is_stdout && global.json {
        return Err(super::answer::usage(
            "--json prints one document on stdout, where the log would go: export to a file",
        ));
    }
    let summed = if is_stdout {
        let summed = write(&session, &mut BufWriter::new(std::io::stdout().lock())).await?;
        complain(&told(&args.file, &summed));
        return Ok(Answer::printed(Exit::Done));
    } else {
        to_file(&session, &args.file).await?
    };
    let document = json!({
        "file": args.file.display().to_string(),
        "events": summed.events,
        "ledger": session.database.identity().ledger.to_string(),
        "zone": session.zone.name(),
        "scale": Scale::get(session.scale),
    });
    Ok(Answer::new(Exit::Done, document, told(&args.file, &summed)))
}

fn told(file: &Path, summed: &Summing) -> String {
    format!("{}: {}", file.display(), counted(summed.events, "event"))
}

async fn to_file(session: &Session, file: &Path) -> anyhow::Result<Summing> {
    let shown = file.display();
    if file.symlink_metadata().is_ok() {
        bail!("{shown} is there already: an export takes no file's place");
    }
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."));
    let partial = tempfile::Builder::new()
        .prefix(".recoup-export-")
        .tempfile_in(folder)
        .with_context(|| format!("{shown} cannot be written"))?;
    let mut writer = BufWriter::new(partial);
    let mut signals = Signals::listen()?;
    // Leaving here removes the file that has no name yet.
    let summed = tokio::select! {
        written = write(session, &mut writer) => written?,
        () = signals.next() => bail!("interrupted: {shown} is not there"),
    };
    let partial = writer
        .into_inner()
        .map_err(|error| error.into_error())
        .with_context(|| format!("{shown} cannot be written"))?;
    partial
        .as_file()
        .sync_all()
        .with_context(|| format!("{shown} cannot be written"))?;
    partial
        .persist_noclobber(file)
        .with_context(|| format!("{shown} cannot be given its name"))?;
    // Its name is on the disk, too, once it is said to be there.
    std::fs::File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("{} cannot be synced", folder.display()))?;
    Ok(summed)
}

async fn write(session: &Session, out: &mut impl Write) -> anyhow::Result<Summing> {
    let store = &session.database;
    let head = store.head().await?;
    let mut summing = Summing::default();
    let mut put = |summing: &mut Summing, line: &[u8]| -> anyhow::Result<()> {
        summing.add(line);
        out.write_all(line)
            .and_then(|()| out.write_all(b"\n"))
            .context("the log cannot be written")
    };
    put(
        &mut summing,
        &serde_json::to_vec(&Head::of(store.identity(), head))?,
    )?;
    let mut after = Position::START;
    while after < head {
        let page = store.read_all(after, PAGE).await?;
        let page: Vec<RecordedEvent> = page
            .into_iter()
            .take_while(|event| event.position <= head)
            .collect();
        let Some(last) = page.last() else {
            bail!("the log ends at position {after}, before its head {head}");
        };
        after = last.position;
        for event in &page {
            put(&mut summing, &event_line(event)?)?;
            summing.events += 1;
        }
    }
    let end = serde_json::to_vec(&summing.end())?;
    put(&mut summing.clone(), &end)?;
    out.flush().context("the log cannot be written")?;
    Ok(summing)
}
