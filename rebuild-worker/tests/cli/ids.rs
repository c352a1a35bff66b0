//! Ids with every byte that an id may have, through arguments, import lines, the log and every list.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::sandbox::Sandbox;

/// Ids that together hold every byte that can stand in one.
fn ids() -> Vec<String> {
    let printable = ' '..='~';
    // Every lead byte of two bytes with many second ones, then one character for every other lead byte.
    let two_bytes = ('\u{a1}'..='\u{7ff}').filter(|c| !c.is_whitespace());
    let three_bytes =
        (0xE0..=0xEF_u32).filter_map(|lead| char::from_u32(((lead & 0xF) << 12) | 0xFC0));
    let four_bytes = [
        '\u{10000}',
        '\u{40000}',
        '\u{80000}',
        '\u{C0000}',
        '\u{10FFFF}',
    ];
    let characters: Vec<char> = printable
        .chain(two_bytes)
        .chain(['\u{d000}'])
        .chain(three_bytes)
        .chain(four_bytes)
        .collect();
    let framed = characters
        .chunks(45)
        .map(|part| format!("x{}x", part.iter().collect::<String>()));
    let mut ids: Vec<String> = framed.collect();
    ids.extend(
        [
            "-",
            "--json",
            "-5",
            "\"",
            "%2B",
            "+",
            "a/b",
            "j".repeat(200).as_str(),
        ]
        .map(str::to_owned),
    );
    ids
}

#[test]
fn the_ids_hold_every_byte_that_an_id_may_have() {
    let found: BTreeSet<u8> = ids().iter().flat_map(|id| id.bytes()).collect();
    let never = |byte: u8| byte < 0x20 || matches!(byte, 0x7F | 0xC0 | 0xC1 | 0xF5..=0xFF);
    let missing: Vec<u8> = (0..=255)
        .filter(|byte| !never(*byte) && !found.contains(byte))
        .collect();
    assert!(missing.is_empty(), "{missing:X?}");
}

#[test]
fn every_id_comes_back_as_it_went_in() {
    let sandbox = Sandbox::new();
    let (by_argument, by_import): (Vec<_>, Vec<_>) =
        ids().into_iter().enumerate().partition(|(n, _)| n % 8 == 0);
    for (_, id) in &by_argument {
        let flag = |name: &str| format!("--{name}={id}");
        let grant = [
            "account",
            "grant",
            &flag("account"),
            &flag("grant"),
            "--amount=9",
        ]
        .map(str::to_owned);
        sandbox.run(&grant).ended(0).says("account", id.as_str());
        let charge = [
            "job",
            "charge",
            &flag("job"),
            &flag("account"),
            &flag("kind"),
            "--cost=4",
            &flag("command-id"),
        ];
        sandbox.run(&charge).ended(0).says("job", id.as_str());
    }
    let lines: Vec<String> = by_import
        .iter()
        .flat_map(|(_, id)| {
            [
                json!({ "op": "grant", "account": id, "grant": id, "amount": 9 }).to_string(),
                json!({ "op": "charge", "job": id, "account": id, "cost": 4, "kind": id })
                    .to_string(),
            ]
        })
        .collect();
    sandbox.import(lines.join("\n")).ended(0);

    check_lists(&sandbox);
    for (_, id) in by_argument.iter().chain(by_import.iter().step_by(5)) {
        check_one(&sandbox, id);
    }
    sandbox.audited();
}

/// One key of each row of a list.
fn listed(list: &Value, key: &str) -> Vec<String> {
    let rows = list.as_array().expect("a list").iter();
    rows.filter_map(|row| row[key].as_str().map(str::to_owned))
        .collect()
}

fn check_lists(sandbox: &Sandbox) {
    let mut expected = ids();
    let jobs = sandbox.line("job list --limit 1000").ended(0).document();
    let mut found = listed(&jobs["jobs"], "job");
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let accounts = sandbox
        .line("account list --limit 1000")
        .ended(0)
        .document();
    assert_eq!(
        listed(&accounts["accounts"], "account"),
        expected,
        "in byte order"
    );
}

fn check_one(sandbox: &Sandbox, id: &str) {
    let job = sandbox
        .run(&["job", "show", "--", id])
        .ended(0)
        .says("job", id);
    assert_eq!((&job["account"], &job["kind"]), (&json!(id), &json!(id)));
    let account = sandbox
        .run(&["account", "show", "--", id])
        .ended(0)
        .says("account", id);
    assert_eq!(account["balance"], 5);
    let entries = sandbox
        .run(&["account", "entries", "--", id])
        .ended(0)
        .document();
    assert_eq!(listed(&entries["entries"], "job"), [id]);
    assert_eq!(entries["entries"][0]["reference"], json!(id));
    let usage = sandbox
        .run(&["account", "usage", "--", id])
        .ended(0)
        .document();
    assert_eq!(usage["days"][0]["kind"], json!(id));
}

#[test]
fn parts_that_join_alike_do_not_collide() {
    let sandbox = Sandbox::new();
    let parts = [
        ("a+b", "c"),
        ("a", "b+c"),
        ("a-b", "c"),
        ("a", "b-c"),
        ("a%2Bb", "c"),
        ("grant-a", "b+c"),
    ];
    for (account, grant) in parts {
        let args = [
            "account",
            "grant",
            "--account",
            account,
            "--grant",
            grant,
            "--amount",
            "7",
        ];
        sandbox.run(&args).ended(0).says("outcome", "applied");
        sandbox
            .run(&args)
            .ended(0)
            .says("outcome", "already_applied");
    }
    sandbox.line("account show a").ended(0).says("balance", 14);
    sandbox.line("account show a+b").ended(0).says("balance", 7);
    sandbox.audited();
}
