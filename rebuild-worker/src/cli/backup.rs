//! `recoup backup FILE`: a consistent copy of an embedded ledger while it is used. The copy is a ledger: open it with `--store sqlite:FILE`.

use std::path::PathBuf;

use recoup::EventStore;
use serde_json::json;

use super::answer::{Answer, usage};
use super::session::Global;
use crate::exit::Exit;

/// Where to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The copy: a file that is not there yet.
    file: PathBuf,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    let why = "backup copies the file of an embedded ledger; a server's database is backed up with its own tools, such as pg_dump";
    global.file(why)?;
    let session = global.open_existing().await?;
    let store = session.database.as_sqlite().ok_or_else(|| usage(why))?;
    let copied = store.backup(args.file.clone()).await?;
    let file = args.file.display().to_string();
    let document = json!({
        "file": file,
        "bytes": copied.bytes,
        "position": copied.position.get(),
        "ledger": session.database.identity().ledger.to_string(),
    });
    let text = format!(
        "{file}: {} bytes, to position {}",
        copied.bytes, copied.position
    );
    Ok(Answer::new(Exit::Done, document, text))
}
