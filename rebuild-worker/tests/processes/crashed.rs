//! A server that ends at once, as in a crash, under a running `recoup up`.

use std::fmt::Write;
use std::process::Stdio;

use recoup::store::fresh::Fresh;

use crate::children::{Running, eventually};
use crate::sandbox::Sandbox;
use crate::server::{Server, is_wanted};
use crate::up::Up;

/// Jobs whose timers run out at once and which the due loop ends, and grants.
fn commands(round: u32) -> String {
    let mut text = String::new();
    for n in 0..1_000 {
        let _ = writeln!(
            text,
            r#"{{"op":"grant","account":"a","grant":"g{round}-{n}","amount":10}}"#
        );
        if n % 10 == 0 {
            let _ = writeln!(
                text,
                r#"{{"op":"charge","job":"j{round}-{n}","account":"a","cost":7,"kind":"brief"}}"#
            );
        }
    }
    text
}

/// Interleaving, three times over: commands are imported, what they append is applied, timers run out and are carried out, and the server ends at once. It is told that the store does not answer; the server recovers,
/// and every loop goes on by itself.
#[test]
fn every_loop_finds_a_server_again_that_has_crashed() {
    if !is_wanted() {
        return;
    }
    let server = Server::start();
    let mut sandbox = Sandbox::new();
    sandbox.ledger = Fresh::on_server(&server.url);
    let policies = sandbox.write("policies.toml", "[kind.brief]\nstart_within = \"10ms\"\n");
    sandbox.environment = vec![
        ("RECOUP_STORE", sandbox.ledger.url()),
        ("RECOUP_CONFIG", policies.display().to_string()),
    ];
    let up = Up::start(&sandbox);
    up.wait_for(200);
    for round in 1..=3 {
        let before = up.of_entries("position");
        let file = format!("commands-{round}.jsonl");
        sandbox.write(&file, commands(round));
        let mut command = sandbox.command(&["--json", "import", &file]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut import = Running(command.spawn().expect("the binary can be run"));
        eventually("it is in the middle of its work", || {
            (up.of_entries("position") > before + 100.0).then_some(())
        });
        server.end_at_once();
        up.wait_for(503);
        assert_eq!(up.get("/healthz").0, 200);
        server.recover();
        // Killed, if it still tries: what it has carried out is found by the one that is given next.
        import.signal("KILL");
        import.ended();
        up.wait_for(200);
        sandbox.line(&format!("import {file}")).ended(0);
    }
    eventually(
        "every job is ended by its timer, and everything is applied",
        || {
            let open = sandbox.line("job list --state queued").ended(0).document();
            let lag = up.of_entries("lag_events");
            (open["jobs"].as_array().map(Vec::len) == Some(0) && lag == 0.0).then_some(())
        },
    );
    let document = up.wait_for(200);
    for name in ["projector", "due", "rebuild", "http"] {
        let is_up = up.metric(&format!("recoup_loop_up{{loop=\"{name}\"}}"));
        assert_eq!(is_up, 1.0, "{name}: {document}");
    }
    // The due loop has refunded all, once.
    sandbox
        .line("account show a")
        .ended(0)
        .says("balance", 3 * 10_000);
    up.end("TERM");
    sandbox.audited();
}
