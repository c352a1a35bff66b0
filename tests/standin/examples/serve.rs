//! A stand-in for KurrentDB to try recoup on: it keeps its log in memory, and everything is gone with it.
//!
//! `cargo run -p recoup-kurrentdb-standin --example serve [NODES]` prints the connection string, and serves until it is ended.

use std::process::ExitCode;

use recoup_kurrentdb_standin::Standin;

#[tokio::main]
async fn main() -> ExitCode {
    let nodes = std::env::args().nth(1).map_or(Ok(1), |text| text.parse());
    let Ok(nodes @ 1..=9) = nodes else {
        eprintln!("the number of nodes is 1 to 9");
        return ExitCode::from(2);
    };
    let standin = Standin::cluster(nodes).await;
    println!("{}", standin.connection_string());
    std::future::pending::<()>().await;
    ExitCode::SUCCESS
}
