//! A stand-in on the machine's clock, until its standard input ends: to try what is written for a server.
//!
//! `cargo run -p recoup-kurrentdb-standin --example serve [NODES]` prints the connection string.
#![expect(clippy::print_stdout, reason = "who starts it reads where it is")]

use recoup_kurrentdb_standin::Standin;

#[tokio::main]
async fn main() {
    let nodes = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let standin = Standin::cluster(nodes.unwrap_or(1)).await;
    println!("{}", standin.connection_string());
    let end =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    end.await.ok();
    // What the tests of another program leave behind.
    let deletions = standin.requests().deletions;
    println!("{} records, {deletions} deletions", standin.records().len());
}
