//! `recoup up`: runs every loop in one process until SIGINT or SIGTERM, and answers for its health over HTTP.
//!
//! Exit code 0 is an end in peace; 1 says that a loop had to be left where it was, or that it could not begin.

use std::net::SocketAddr;

use recoup_projections::Projections;
use serde_json::json;

use super::answer::{Answer, complain};
use super::session::Global;
use super::table::{Column, table};
use crate::exit::Exit;
use crate::signals::Signals;
use crate::up::{self, Ended, Handles};

/// Where to listen.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address and port of /healthz, /readyz and /metrics; port 0 takes a free one, which is printed.
    #[arg(
        long,
        env = "RECOUP_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7070"
    )]
    listen: SocketAddr,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<Answer> {
    let signals = Signals::listen()?;
    let listener = up::bind(args.listen)?;
    let address = listener.local_addr()?;
    let session = global.open().await?;
    let projections = Projections::open(session.database.clone()).await?;
    complain(&format!(
        "listening on http://{address} (/healthz, /readyz, /metrics); interrupt to stop"
    ));
    let handles = Handles {
        ledger: session.ledger,
        projections,
    };
    let ended = up::run(handles, listener, signals).await;
    Ok(answer(address, &ended))
}

fn answer(address: SocketAddr, ended: &Ended) -> Answer {
    let restarts: u64 = ended.loops.iter().map(|view| view.restarts).sum();
    let document = json!({
        "listened": address.to_string(),
        "loops": ended.loops,
        "restarts": restarts,
        "unfinished": ended.unfinished,
    });
    let columns = [
        Column::Text("loop"),
        Column::Number("restarts"),
        Column::Text("at the end"),
    ];
    let rows = ended.loops.iter().map(|view| {
        let end = view.error.clone().unwrap_or_else(|| view.detail.clone());
        vec![view.name.to_owned(), view.restarts.to_string(), end]
    });
    let mut text = table(&columns, rows);
    if ended.unfinished.is_empty() {
        return Answer::new(Exit::Done, document, text);
    }
    text.push_str("\nleft where they were: ");
    text.push_str(&ended.unfinished.join(", "));
    Answer::new(Exit::Failed, document, text)
}
