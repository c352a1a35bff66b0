//! Bad input of every kind: a clear error each, and nothing half applied.

use std::fs;

use serde_json::json;

use crate::sandbox::Sandbox;

const CHARGE: &str = r#"{"op":"charge","job":"j","account":"a","cost":40,"kind":"k"}"#;

/// A charge with one part replaced.
fn charge(part: &str, by: &str) -> String {
    let line = CHARGE.replace(part, by);
    assert_ne!(line, CHARGE, "{part} stands in the line");
    line
}

fn price(cost: &str, line: &str) -> String {
    charge(
        "\"cost\":40",
        &format!(r#""cost":{cost},"price":{{"list":"l","rounding":"up","lines":[{line}]}}"#),
    )
}

/// Imports each line into a ledger that takes any charge: each is refused, with its cause, and nothing of it is applied.
#[track_caller]
fn refused<L: AsRef<str>>(cases: &[(L, &str)]) {
    let sandbox = Sandbox::new();
    sandbox
        .line("account limit --account a --floor none")
        .ended(0);
    let before = sandbox.line("account show a").ended(0).document();
    for (line, cause) in cases {
        let report = sandbox.import(line.as_ref()).ended(1).document();
        assert_eq!(
            (&report["lines"], &report["error"]["line"]),
            (&json!(0), &json!(1)),
            "{report}"
        );
        let told = report["error"]["cause"].as_str().expect("a text");
        assert!(told.contains(cause), "{cause:?} in {told:?}");
        assert!(told.len() < 500, "{told}");
    }
    let after = sandbox.line("account show a").ended(0).document();
    assert_eq!(after, before, "nothing of any line was applied");
}

#[test]
fn a_line_of_another_shape_is_refused() {
    let twice = format!("{CHARGE}{CHARGE}");
    let long = format!("{}{CHARGE}", " ".repeat(1 << 20));
    refused(&[
        ("{", "EOF"),
        ("nonsense", "column 2: expected ident"),
        ("[\"charge\"]", "expected an object"),
        ("null", "expected an object"),
        (&twice, "trailing characters"),
        (&long, "more than 1048576 bytes"),
        (r#"{"job":"j"}"#, "op is missing"),
        (r#"{"op":"refund","job":"j"}"#, "unknown op \"refund\""),
        (r#"{"op":7}"#, "expected a string"),
        (r#"{"recoup_log":1,"zone":"UTC"}"#, "missing field `scale`"),
        (r#"{"op":"fail","job":"j"}"#, "missing field `attempt`"),
    ]);
    let at = r#","at":"2026-11-29T10:00:00Z"}"#;
    refused(&[
        (charge("}", r#","colour":"red"}"#), "unknown field `colour`"),
        (charge("}", r#","job":"j2"}"#), "duplicate field `job`"),
        (charge("}", r#","op":"charge"}"#), "duplicate field `op`"),
        (charge(r#""account":"a","#, ""), "missing field `account`"),
        (charge("}", at), "at is for import --backfill"),
    ]);
}

#[test]
fn an_id_outside_its_type_is_refused() {
    let long = format!("\"{}\"", "x".repeat(300));
    refused(&[
        (charge("\"j\"", "\"\""), "job id is empty"),
        (charge("\"j\"", "\" j\""), "white space"),
        (charge("\"j\"", "\"a\\u0007b\""), "control character U+0007"),
        (charge("\"j\"", "\"a\\u0085b\""), "control character U+0085"),
        (charge("\"j\"", "\"a\tb\""), "control character"),
        (charge("\"j\"", "\"\\ud800\\u0041\""), "surrogate"),
        (charge("\"j\"", "7"), "expected job id"),
        (charge("\"j\"", &long), "job id has 300 bytes"),
        (charge("\"a\"", &long), "account id has 300 bytes"),
    ]);
}

#[test]
fn an_amount_outside_its_type_is_refused() {
    let too_large = "1000000000000001";
    refused(&[
        (charge("40", "-40"), "cost: amount -40 is not positive"),
        (charge("40", "0"), "cost: amount 0 is not positive"),
        (charge("40", too_large), "cost: amount 1000000000000001 is"),
        (charge("40", "9223372036854775808"), "9223372036854775808"),
        (charge("40", "1e30"), "floating point"),
        (charge("40", "40.0"), "floating point"),
        (charge("40", "\"40\""), "string"),
    ]);
    refused(&[
        (
            r#"{"op":"grant","account":"a","grant":"g","amount":0}"#,
            "amount: amount 0 is not",
        ),
        (
            r#"{"op":"adjust","account":"a","adjustment":"x","amount":0,"reason":"r"}"#,
            "amount is zero",
        ),
        (
            r#"{"op":"limit","account":"a","monthly_cap":-1}"#,
            "monthly cap -1",
        ),
        (
            r#"{"op":"limit","account":"a","floor":9000000000000000000}"#,
            "floor 9000000000000000000",
        ),
    ]);
}

#[test]
fn a_price_that_does_not_come_to_the_cost_is_refused() {
    let line = |quantity: i64, per: i64| {
        format!(r#"{{"unit":"u","quantity":{quantity},"unit_price":20,"per":{per}}}"#)
    };
    let more = line(2, 1).replace('}', r#","x":1}"#);
    refused(&[
        (
            price("41", &line(2, 1)),
            "multiplies out to 40, but the cost is 41",
        ),
        (price("40", ""), "price has 0 lines"),
        (price("40", &line(-2, 1)), "quantity -2"),
        (price("40", &line(2, 0)), "per 0"),
        (price("40", r#"["u",2,20,1]"#), "expected an object"),
        (price("40", &more), "unknown field `x`"),
    ]);
}

#[test]
fn another_value_outside_its_type_is_refused() {
    let reason = json!({"op": "fail", "job": "j", "attempt": 1, "reason": "r".repeat(501)});
    let result = json!({"op": "succeed", "job": "j", "attempt": 1, "result": "r".repeat(2049)});
    let class = r#"{"op":"fail","job":"j","attempt":1,"class":"maybe"}"#;
    let no_reason = r#"{"op":"adjust","account":"a","adjustment":"x","amount":1,"reason":""}"#;
    refused(&[
        (
            charge("}", r#","policy":"both"}"#),
            "unknown variant `both`",
        ),
        (r#"{"op":"fail","job":"j","attempt":-1}"#.to_owned(), "-1"),
        (class.to_owned(), "unknown variant `maybe`"),
        (no_reason.to_owned(), "reason is empty"),
        (reason.to_string(), "reason has 501 bytes"),
        (result.to_string(), "result has 2049 bytes"),
    ]);
}

#[test]
fn bytes_that_are_no_text_are_named_by_line() {
    let sandbox = Sandbox::new();
    let report = sandbox
        .import(b"\n{\"op\":\"start\",\"job\":\"\xff\"}\n")
        .ended(1)
        .document();
    assert_eq!(
        report["error"],
        json!({ "line": 2, "cause": "byte 22 is no UTF-8" })
    );
    let utf16: Vec<u8> = CHARGE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    sandbox.import([&b"\xff\xfe"[..], &utf16].concat()).ended(1);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let sandbox = Sandbox::new();
    for file in ["absent.jsonl", "."] {
        let told = sandbox.run(&["import", file]).ended(1).document();
        assert!(
            told["error"]
                .as_str()
                .is_some_and(|error| error.contains(file)),
            "{told}"
        );
    }
    assert!(!sandbox.has_ledger());
}

#[test]
fn arguments_are_checked_like_lines() {
    let sandbox = Sandbox::new();
    let long_id = "x".repeat(300);
    let charge = |job: &str, cost: &str, price: &str| {
        let mut args = vec![
            "job",
            "charge",
            "--account",
            "a",
            "--kind",
            "k",
            "--job",
            job,
            "--cost",
            cost,
        ];
        if !price.is_empty() {
            args.extend(["--price", price]);
        }
        sandbox.run(&args).ended(2).document()["error"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    let price = |quantity: i64| {
        format!(
            r#"{{"list":"l","rounding":"up","lines":[{{"unit":"u","quantity":{quantity},"unit_price":20,"per":1}}]}}"#
        )
    };
    let cases = [
        (charge(&long_id, "40", ""), "job id has 300 bytes"),
        (charge("a\u{1b}[31m", "40", ""), "control character U+001B"),
        (charge("j", "-40", ""), "not positive"),
        (charge("j", "9223372036854775808", ""), "64 bits"),
        (
            charge("j", "40", &price(3)),
            "multiplies out to 60, but the cost is 40",
        ),
        (charge("j", "40", &price(-2)), "quantity -2"),
        (charge("j", "40", "{}"), "missing field `list`"),
    ];
    for (told, expected) in cases {
        assert!(told.contains(expected), "{expected:?} in {told:?}");
    }
    let good = price(2);
    sandbox
        .line("account limit --account a --floor none")
        .ended(0);
    let args = [
        "job",
        "charge",
        "--account=a",
        "--kind=k",
        "--job=j",
        "--cost=40",
        "--price",
        &good,
    ];
    sandbox.run(&args).ended(0);
}

#[test]
fn a_database_of_another_kind_is_refused_and_left_alone() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    sandbox.write("text.db", "this is no database, and long enough to have a header of a hundred bytes if it were one: so there it is");
    sandbox.write("short.db", "x");
    let other = rusqlite::Connection::open(sandbox.path("other.db")).expect("created");
    other
        .execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
        .expect("filled");
    drop(other);
    for name in ["text.db", "short.db", "other.db"] {
        let before = fs::read(sandbox.path(name)).expect("it is there");
        let told = sandbox
            .line(&format!("--store sqlite:{name} audit"))
            .ended(1)
            .says("code", "foreign");
        assert!(
            told["error"]
                .as_str()
                .is_some_and(|error| error.contains(name)),
            "{told}"
        );
        assert_eq!(
            fs::read(sandbox.path(name)).expect("it is there"),
            before,
            "{name}"
        );
    }
}

#[test]
fn a_truncated_database_is_refused() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    sandbox
        .import(
            (0..200)
                .map(|n| {
                    format!(
                        "{{\"op\":\"grant\",\"account\":\"a\",\"grant\":\"g{n}\",\"amount\":1}}\n"
                    )
                })
                .collect::<String>(),
        )
        .ended(0);
    let database = rusqlite::Connection::open(sandbox.file()).expect("it can be opened");
    database
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .expect("copied back");
    drop(database);
    let whole = fs::read(sandbox.file()).expect("it is there");
    sandbox.write("half.db", &whole[..whole.len() / 2]);
    sandbox
        .line("--store sqlite:half.db audit")
        .ended(1)
        .says("code", "damaged");
    sandbox.line("audit").ended(0);
}

#[test]
fn a_newer_schema_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.line("audit").ended(0);
    let later = "INSERT INTO migrations VALUES ('ledger', 99, 'later')";
    sandbox.ledger.execute(later);
    sandbox
        .line("account show a")
        .ended(1)
        .says("code", "newer_schema");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    sandbox.write("file", "x");
    for place in ["file/sub/recoup.db", "/proc/recoup/recoup.db", "."] {
        let told = sandbox
            .line(&format!("--store sqlite:{place} init"))
            .ended(1)
            .document();
        assert!(
            told["error"]
                .as_str()
                .is_some_and(|error| !error.is_empty()),
            "{told}"
        );
    }
}

#[test]
fn another_zone_or_scale_is_refused_whatever_the_verb() {
    let sandbox = Sandbox::new();
    sandbox
        .line("init --zone America/New_York --scale 2")
        .ended(0);
    for verb in [
        "init",
        "audit",
        "account show a",
        "project --once",
        "job list",
    ] {
        sandbox
            .line(&format!("--zone UTC {verb}"))
            .ended(2)
            .says("code", "zone_differs");
        sandbox
            .line(&format!("{verb} --scale 0"))
            .ended(2)
            .says("code", "scale_differs");
        sandbox
            .line(&format!("{verb} --zone America/New_York --scale 2"))
            .ended(0);
    }
}

#[test]
fn a_full_disk_stops_an_import_which_goes_on_once_there_is_room() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    let lines = (0..4000).map(|n| {
        format!(
            "{{\"op\":\"charge\",\"job\":\"j{n}\",\"account\":\"a\",\"cost\":1,\"kind\":\"k\"}}\n\
            {{\"op\":\"fail\",\"job\":\"j{n}\",\"attempt\":1}}\n"
        )
    });
    sandbox.write("jobs.jsonl", lines.collect::<String>());
    sandbox
        .line("account limit --account a --floor none")
        .ended(0);
    let full = sandbox
        .line("--max-pages 300 import jobs.jsonl")
        .ended(1)
        .document();
    assert_eq!(full["error"]["code"], "disk_full", "{full}");
    let applied = full["applied"].as_i64().expect("a count");
    assert!((1..8000).contains(&applied), "{full}");
    // What stands behind the line that found no room was not carried out, and so not rejected.
    assert_eq!(
        (&full["rejected"], &full["error"]["line"]),
        (&json!(0), &json!(applied + 1))
    );
    // A charge is one event, a failure three: what was told is what is there.
    assert_eq!(sandbox.audited()["position"], 1 + applied * 2);
    let report = sandbox.line("import jobs.jsonl").ended(0).document();
    let count = |key: &str| report[key].as_i64().expect("a count");
    assert_eq!(
        (count("applied"), count("already_applied")),
        (8000 - applied, applied)
    );
    sandbox.audited();
}
