//! `recoup import`: order, repeats, reports.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::has_keys;
use crate::sandbox::Sandbox;

/// Charges that fail, recover, and repeat themselves, with a refusal and a contradiction.
const MIXED: &str = r#"{"op":"grant","account":"a1","grant":"g1","amount":1000}
{"op":"limit","account":"a1","monthly_cap":5000,"floor":0}
{"op":"charge","job":"j1","account":"a1","cost":40,"kind":"video.render","price":{"list":"2026-11","rounding":"half_even","lines":[{"unit":"job","quantity":1,"unit_price":40,"per":1}]}}
{"op":"charge","job":"j2","account":"a1","cost":10,"kind":"video.render","policy":"claimed"}
{"op":"start","job":"j2","worker":"w1"}
{"op":"extend","job":"j2","attempt":1}
{"op":"fail","job":"j1","attempt":1,"class":"retryable","reason":"timeout"}
{"op":"fail","job":"j1","attempt":1,"class":"retryable","reason":"timeout"}
{"op":"succeed","job":"j1","attempt":1,"result":"s3://out/1"}
{"op":"succeed","job":"j1","attempt":1,"result":"s3://out/1"}
{"op":"charge","job":"j3","account":"a1","cost":5000,"kind":"video.render"}
{"op":"fail","job":"j3","attempt":1}
{"op":"fail","job":"j2","attempt":1,"class":"terminal"}
{"op":"redrive","job":"j2","reason":"again"}
{"op":"cancel","job":"j2","reason":"enough"}
{"op":"succeed","job":"j2","attempt":2,"result":"late"}
{"op":"adjust","account":"a1","adjustment":"x1","amount":-5,"reason":"fee","job":"j1"}
"#;

fn tally(report: &Value) -> [u64; 5] {
    ["lines", "applied", "already_applied", "noted", "rejected"]
        .map(|key| report[key].as_u64().expect(key))
}

#[test]
fn a_file_is_carried_out_in_order_and_reported() {
    let sandbox = Sandbox::new();
    let report = sandbox.import(MIXED).ended(3).document();
    has_keys(
        &report,
        "lines applied already_applied noted rejected rejections error",
    );
    assert_eq!(tally(&report), [17, 11, 3, 1, 2], "{report}");
    assert_eq!(report["error"], Value::Null);
    let rejections: Vec<(&Value, &Value)> = report["rejections"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| (&row["line"], &row["code"]))
        .collect();
    assert_eq!(
        rejections,
        [
            (&json!(11), &json!("insufficient_credit")),
            (&json!(12), &json!("no_such_job"))
        ]
    );
    sandbox
        .line("account show a1")
        .ended(0)
        .says("balance", 955);
    sandbox
        .line("job show j1")
        .ended(0)
        .says("money", "reclaimed");
    sandbox.audited();
}

#[test]
fn a_file_given_again_answers_line_by_line_and_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.import(MIXED).ended(3);
    let before = sandbox.line("account show a1").ended(0).document();
    for _ in 0..2 {
        let report = sandbox.import(MIXED).ended(3).document();
        // What was rejected is rejected again, what was noted stays noted.
        assert_eq!(tally(&report), [17, 0, 14, 1, 2], "{report}");
        assert_eq!(sandbox.line("account show a1").ended(0).document(), before);
    }
    // Another file, and be it by one byte, has ids of its own: duplicates are recognised by the streams.
    let report = sandbox.import(format!("{MIXED}\n")).document();
    assert_eq!(report["applied"], 0, "{report}");
}

#[test]
fn a_bad_line_stops_the_import_and_leaves_what_stands_before_it() {
    let sandbox = Sandbox::new();
    let grant = |n: u32| format!(r#"{{"op":"grant","account":"a","grant":"g{n}","amount":1}}"#);
    let text = format!(
        "{}\n\n{}\n{{\"op\":\"grant\"\n{}\n",
        grant(1),
        grant(2),
        grant(3)
    );
    let report = sandbox.import(&text).ended(1).document();
    assert_eq!(
        (tally(&report), &report["error"]["line"]),
        ([2, 2, 0, 0, 0], &json!(4)),
        "{report}"
    );
    assert!(report["error"]["cause"].is_string());
    sandbox.line("account show a").ended(0).says("balance", 2);
    let plain = sandbox.plain(&["import", "import.jsonl"]).ended(1);
    assert!(
        plain.stderr.contains("line 4: ") && plain.stdout.contains("2 already applied"),
        "{plain:?}"
    );
    // Mended, it is another file; its first lines were applied all the same.
    let report = sandbox
        .import(text.replace("{\"op\":\"grant\"\n", ""))
        .ended(0)
        .document();
    assert_eq!(tally(&report), [3, 1, 2, 0, 0]);
}

#[test]
fn line_ends_marks_and_blanks_do_not_matter() {
    let sandbox = Sandbox::new();
    let text = "\u{feff}{\"op\":\"grant\",\"account\":\"a\",\"grant\":\"g\",\"amount\":1}\r\n \t\r\n\r\n{ \"op\" : \"grant\" , \"account\":\"b\",\"grant\":\"g\",\"amount\":1}  ";
    assert_eq!(
        tally(&sandbox.import(text).ended(0).document()),
        [2, 2, 0, 0, 0]
    );
    let report = sandbox.import(format!("{text}\n\nx")).ended(1).document();
    assert_eq!(report["error"]["line"], 6, "empty lines count: {report}");
    for empty in ["", "\n\n", "\u{feff}"] {
        assert_eq!(tally(&sandbox.import(empty).ended(0).document()), [0; 5]);
    }
}

#[test]
fn stdin_and_pipes_have_the_same_ids_as_the_file() {
    let sandbox = Sandbox::new();
    assert_eq!(
        tally(&sandbox.pipe(&["import", "-"], MIXED).ended(3).document())[1],
        11
    );
    assert_eq!(tally(&sandbox.import(MIXED).ended(3).document())[1], 0);
    assert_eq!(
        tally(
            &sandbox
                .pipe(&["import", "/dev/stdin"], MIXED)
                .ended(3)
                .document()
        )[1],
        0
    );
}

#[test]
fn credit_is_spent_in_the_files_order() {
    let sandbox = Sandbox::new();
    // Each job's charge needs the refund of the one before, over many windows.
    let mut text =
        String::from("{\"op\":\"grant\",\"account\":\"a\",\"grant\":\"g\",\"amount\":10}\n");
    for n in 0..1500 {
        let _ = writeln!(
            text,
            r#"{{"op":"charge","job":"j{n}","account":"a","cost":10,"kind":"k"}}"#
        );
        let _ = writeln!(
            text,
            r#"{{"op":"charge","job":"never{n}","account":"a","cost":1,"kind":"k"}}"#
        );
        let _ = writeln!(text, r#"{{"op":"fail","job":"j{n}","attempt":1}}"#);
        let _ = writeln!(text, r#"{{"op":"fail","job":"j{n}","attempt":1}}"#);
    }
    let report = sandbox.import(&text).ended(3).document();
    assert_eq!(tally(&report), [6001, 3001, 1500, 0, 1500]);
    let is_never = |row: &Value| {
        row["line"].as_u64().is_some_and(|line| line % 4 == 3)
            && row["code"] == "insufficient_credit"
    };
    assert!(
        report["rejections"]
            .as_array()
            .expect("a list")
            .iter()
            .all(is_never)
    );
    sandbox.line("account show a").ended(0).says("balance", 10);
    sandbox.audited();
}

#[test]
fn a_refused_line_may_be_tried_again_by_the_next_run() {
    let sandbox = Sandbox::new();
    let text = r#"{"op":"charge","job":"j","account":"a","cost":10,"kind":"k"}"#;
    sandbox.import(text).ended(3);
    sandbox
        .line("account grant --account a --grant g --amount 10")
        .ended(0);
    assert_eq!(
        tally(&sandbox.import(text).ended(0).document()),
        [1, 1, 0, 0, 0]
    );
}

#[test]
fn limits_differ_between_absent_and_null() {
    let sandbox = Sandbox::new();
    let limits = |sandbox: &Sandbox| {
        let shown = sandbox.line("account show a").ended(0).document();
        (shown["floor"].clone(), shown["month"]["cap"].clone())
    };
    sandbox
        .import(r#"{"op":"limit","account":"a","monthly_cap":50,"floor":-7}"#)
        .ended(0);
    assert_eq!(limits(&sandbox), (json!(-7), json!(50)));
    sandbox
        .import(r#"{"op":"limit","account":"a","floor":null}"#)
        .ended(0);
    assert_eq!(limits(&sandbox), (Value::Null, json!(50)));
    sandbox
        .import(r#"{"op":"limit","account":"a","monthly_cap":null}"#)
        .ended(0);
    assert_eq!(limits(&sandbox), (Value::Null, Value::Null));
}

#[test]
fn limits_that_were_set_again_later_stay_as_they_are() {
    let sandbox = Sandbox::new();
    let limit =
        |cap: u32| format!("{{\"op\":\"limit\",\"account\":\"a\",\"monthly_cap\":{cap}}}\n");
    let text = [100, 100, 200].map(limit).concat();
    assert_eq!(
        tally(&sandbox.import(&text).ended(0).document()),
        [3, 2, 1, 0, 0]
    );
    assert_eq!(
        tally(&sandbox.import(&text).ended(0).document()),
        [3, 0, 3, 0, 0]
    );
    assert_eq!(
        sandbox.line("account show a").ended(0).document()["month"]["cap"],
        200
    );
}
