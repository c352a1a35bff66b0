//! Every verb once, as JSON and as text: the keys that scripts rely on, and that people get something to read.

use serde_json::{Value, json};

use crate::has_keys;
use crate::sandbox::Sandbox;

/// A ledger with one job that was charged, refunded and reclaimed.
fn lived() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.line("init --zone Asia/Seoul --scale 2").ended(0);
    sandbox
        .line("account grant --account acme --grant welcome --amount 1000")
        .ended(0);
    sandbox
        .line("account limit --account acme --monthly-cap 5000 --floor -100")
        .ended(0);
    sandbox
        .line("job charge --job video-1 --account acme --kind video.render --cost 40")
        .ended(0);
    sandbox
        .line("job fail --job video-1 --attempt 1 --reason timeout")
        .ended(0);
    sandbox
        .line("job succeed --job video-1 --attempt 1 --result s3://out/1")
        .ended(0);
    sandbox
}

#[test]
fn init_creates_a_ledger_once() {
    let sandbox = Sandbox::new();
    let made = sandbox
        .line("init --zone Asia/Seoul --scale 2")
        .ended(0)
        .says("created", true);
    has_keys(&made, "ledger path zone scale");
    let found = sandbox.line("init").ended(0).says("created", false);
    assert_eq!(
        (&found["ledger"], &found["zone"], &found["scale"]),
        (&made["ledger"], &json!("Asia/Seoul"), &json!(2))
    );
    assert!(
        sandbox
            .plain(&["init"])
            .ended(0)
            .stdout
            .contains("Asia/Seoul")
    );
}

#[test]
fn any_first_use_creates_a_ledger_with_the_defaults() {
    let sandbox = Sandbox::new();
    let show = sandbox.line("account show nobody").ended(0).document();
    assert_eq!(
        (&show["balance"], &show["scale"], &show["as_of_position"]),
        (&json!(0), &json!(0), &json!(0))
    );
    sandbox.line("init").ended(0).says("zone", "UTC");
    let sandbox = Sandbox::new();
    sandbox.line("audit --scale 3").ended(0);
    sandbox.line("init").ended(0).says("scale", 3);
}

#[test]
fn job_verbs_answer_with_the_keys_of_the_contract() {
    let sandbox = Sandbox::new();
    let granted = sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0)
        .says("outcome", "applied");
    has_keys(&granted, "account grant revision code command_id scale");
    let charged = sandbox
        .line("job charge --job j --account a --kind k --cost 40 --policy claimed")
        .ended(0);
    let charged = charged.says("outcome", "applied");
    has_keys(&charged, "outcome code job revision state attempt");
    assert_eq!(charged["code"], Value::Null);
    assert_eq!(
        (&charged["state"], &charged["attempt"], &charged["revision"]),
        (&json!("queued"), &json!(0), &json!(0))
    );
    // (the command, the state after it, the attempt)
    let life = [
        ("start --job j --worker w", "running", 1),
        (
            "fail --job j --attempt 1 --class terminal --reason broken",
            "failed",
            1,
        ),
        ("redrive --job j --reason again", "queued", 1),
        ("start --job j", "running", 2),
        ("fail --job j --attempt 2 --class terminal", "failed", 2),
        ("discard --job j --reason enough", "discarded", 2),
    ];
    for (command, state, attempt) in life {
        let told = sandbox
            .line(&format!("job {command}"))
            .ended(0)
            .says("outcome", "applied");
        assert_eq!(
            (&told["state"], &told["attempt"]),
            (&json!(state), &json!(attempt)),
            "{command}"
        );
    }
    sandbox
        .line("job charge --job c --account a --kind k --cost 1 --policy claimed")
        .ended(0);
    sandbox.line("job start --job c").ended(0);
    sandbox
        .line("job extend --job c --attempt 1")
        .ended(0)
        .says("outcome", "already_applied");
    sandbox
        .line("job charge --job d --account a --kind k --cost 1")
        .ended(0);
    sandbox
        .line("job cancel --job d --reason mistake")
        .ended(0)
        .says("state", "cancelled");
    sandbox.audited();
}

#[test]
fn a_dry_run_says_what_would_be_and_does_nothing() {
    let sandbox = Sandbox::new();
    let charge = "job charge --job j --account a --kind k --cost 40 --dry-run";
    sandbox
        .line(charge)
        .ended(3)
        .says("code", "insufficient_credit");
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    let told = sandbox.line(charge).ended(0).says("outcome", "applied");
    assert_eq!(
        (&told["dry_run"], &told["state"]),
        (&json!(true), &json!("queued"))
    );
    sandbox
        .line("job show j")
        .ended(3)
        .says("code", "no_such_job");
    sandbox.line("account show a").ended(0).says("balance", 100);
}

#[test]
fn job_show_tells_a_whole_life() {
    let sandbox = lived();
    let job = sandbox.line("job show video-1").ended(0).document();
    has_keys(
        &job,
        "job account kind cost state money net held attempts entries events scale",
    );
    let figures = ["state", "money", "net", "held", "attempts", "cost"].map(|key| job[key].clone());
    assert_eq!(
        figures,
        [
            json!("delivered"),
            json!("reclaimed"),
            json!(-40),
            json!(0),
            json!(1),
            json!(40)
        ]
    );
    let entries: Vec<(&Value, &Value)> = job["entries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| (&entry["type"], &entry["amount"]))
        .collect();
    let expected = [("charge", -40), ("refund", 40), ("reclaim", -40)]
        .map(|(name, amount)| (json!(name), json!(amount)));
    assert_eq!(
        entries,
        expected.each_ref().map(|(name, amount)| (name, amount))
    );
    let events: Vec<&str> = job["events"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    assert_eq!(
        events,
        [
            "charged",
            "attempt_failed",
            "refunded",
            "failed",
            "delivered",
            "reclaimed"
        ]
    );
    let text = sandbox.plain(&["job", "show", "video-1"]).ended(0).stdout;
    for shown in [
        "refunded, then reclaimed",
        "-0.40",
        "timeout",
        "s3://out/1",
        "attempt_failed",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

#[test]
fn account_show_tells_the_figures() {
    let sandbox = lived();
    let account = sandbox.line("account show acme").ended(0).document();
    has_keys(
        &account,
        "account balance held reserved available floor month as_of_position scale",
    );
    has_keys(&account["month"], "period spent held cap");
    let figures =
        ["balance", "held", "reserved", "available", "floor"].map(|key| account[key].as_i64());
    assert_eq!(figures, [960, 0, 0, 960, -100].map(Some));
    assert_eq!(
        (&account["month"]["spent"], &account["month"]["cap"]),
        (&json!(40), &json!(5000))
    );
    assert_eq!(account["as_of_position"], 8);
}

#[test]
fn account_entries_are_a_statement() {
    let sandbox = lived();
    let entries = sandbox
        .line("account entries acme --limit 3")
        .ended(0)
        .document();
    has_keys(&entries, "entries next scale as_of_position");
    has_keys(
        &entries["entries"][0],
        "position type amount balance job posted_at charged_at",
    );
    let amounts = |entries: &Value| -> Vec<(i64, i64)> {
        let rows = entries["entries"].as_array().expect("a list").iter();
        rows.filter_map(|row| row["amount"].as_i64().zip(row["balance"].as_i64()))
            .collect()
    };
    assert_eq!(amounts(&entries), [(1000, 1000), (-40, 960), (40, 1000)]);
    let rest = sandbox
        .line(&format!("account entries acme --after {}", entries["next"]))
        .ended(0)
        .document();
    assert_eq!(
        (amounts(&rest), &rest["next"]),
        (vec![(-40, 960)], &Value::Null)
    );
}

#[test]
fn account_usage_sums_by_day_and_kind() {
    let sandbox = lived();
    let usage = sandbox.line("account usage acme").ended(0).document();
    let day = &usage["days"][0];
    has_keys(day, "day kind charged refunded reclaimed net jobs");
    let sums = ["charged", "refunded", "reclaimed", "net", "jobs"].map(|key| day[key].as_i64());
    assert_eq!(sums, [40, 40, 40, 40, 1].map(Some));
    let day = day["day"].as_str().expect("a day");
    let both = format!("account usage acme --from {day} --to {day}");
    assert_eq!(
        sandbox.line(&both).ended(0).document()["days"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let none = sandbox
        .line("account usage acme --to 2020-01-01")
        .ended(0)
        .document();
    assert_eq!(none["days"], json!([]));
}

#[test]
fn people_are_shown_amounts_with_the_scale() {
    let sandbox = lived();
    for text in [
        "account show acme",
        "account entries acme",
        "account list",
        "job list",
    ] {
        let shown = sandbox
            .plain(&text.split(' ').collect::<Vec<_>>())
            .ended(0)
            .stdout;
        assert!(
            shown.contains("9.60") || shown.contains("0.40"),
            "{text}: {shown}"
        );
    }
}

#[test]
fn lists_go_on_where_a_page_ends() {
    let sandbox = Sandbox::new();
    let lines: Vec<String> = (0..5)
        .flat_map(|n| {
            [
                format!(r#"{{"op":"grant","account":"a{n}","grant":"g","amount":10}}"#),
                format!(r#"{{"op":"charge","job":"j{n}","account":"a{n}","cost":4,"kind":"k"}}"#),
            ]
        })
        .collect();
    sandbox.import(lines.join("\n")).ended(0);
    let all = |verb: &str, list: &str, id: &str| {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let page = sandbox
                .line(&format!("{verb} list --limit 2{after}"))
                .ended(0)
                .document();
            let rows = page[list].as_array().expect("a list");
            found.extend(
                rows.iter()
                    .filter_map(|row| row[id].as_str().map(str::to_owned)),
            );
            match &page["next"] {
                Value::Null => return found,
                Value::String(next) => after = format!(" --after {next}"),
                next => after = format!(" --after {next}"),
            }
        }
    };
    assert_eq!(
        all("account", "accounts", "account"),
        ["a0", "a1", "a2", "a3", "a4"]
    );
    assert_eq!(all("job", "jobs", "job"), ["j0", "j1", "j2", "j3", "j4"]);
    let of_one = sandbox
        .line("job list --account a3 --state queued")
        .ended(0)
        .document();
    assert_eq!(of_one["jobs"].as_array().map(Vec::len), Some(1));
    let last = sandbox
        .line("job list --newest-first --limit 1")
        .ended(0)
        .document();
    assert_eq!(last["jobs"][0]["job"], "j4");
}

#[test]
fn contradictions_are_listed() {
    let sandbox = Sandbox::new();
    assert!(
        sandbox
            .plain(&["contradictions", "list"])
            .ended(0)
            .stdout
            .contains("no contradictions")
    );
    sandbox
        .line("account grant --account a --grant g --amount 100")
        .ended(0);
    sandbox
        .line("job charge --job j --account a --kind k --cost 40")
        .ended(0);
    sandbox.line("job cancel --job j").ended(0);
    sandbox
        .line("job succeed --job j --attempt 1 --result late")
        .ended(3)
        .says("outcome", "noted");
    let list = sandbox.line("contradictions list").ended(0).document();
    let row = &list["contradictions"][0];
    has_keys(
        row,
        "position job account signal attempt reason result posted_at",
    );
    assert_eq!(
        (&row["signal"], &row["result"]),
        (&json!("succeeded"), &json!("late"))
    );
    assert!(
        sandbox
            .plain(&["contradictions", "list"])
            .ended(0)
            .stdout
            .contains("late")
    );
}

#[test]
fn project_and_audit_answer_with_the_keys_of_the_contract() {
    let sandbox = lived();
    let projected = sandbox.line("project --once").ended(0).says("position", 8);
    has_keys(
        &projected["projections"][0],
        "projection position lag_events halted",
    );
    let audit = sandbox.audited();
    has_keys(&audit, "checks violations findings position events");
    assert_eq!(
        (&audit["position"], &audit["events"], &audit["findings"]),
        (&json!(8), &json!(8), &json!([]))
    );
    assert!(
        audit["checks"].as_u64().is_some_and(|checks| checks > 0),
        "{audit}"
    );
    assert!(
        sandbox
            .plain(&["audit"])
            .ended(0)
            .stdout
            .contains("0 violations")
    );
}

#[test]
fn a_drift_is_exit_code_4() {
    let sandbox = lived();
    sandbox.line("project --once").ended(0);
    for sql in [
        "UPDATE account_state SET balance = balance + 1",
        "UPDATE daily_usage SET refunded = 0",
    ] {
        sandbox.ledger.execute(sql);
    }
    let audit = sandbox.line("audit").ended(4).document();
    assert!(
        audit["violations"]
            .as_u64()
            .is_some_and(|violations| violations >= 2),
        "{audit}"
    );
    assert!(
        audit["findings"]
            .as_array()
            .is_some_and(|findings| findings.len() >= 2),
        "{audit}"
    );
    let text = sandbox.plain(&["audit"]).ended(4).stdout;
    assert!(text.contains("acme"), "{text}");
}

#[test]
fn bench_and_demo_answer_with_one_document() {
    let sandbox = Sandbox::new();
    let figures = sandbox
        .line("bench append --lifecycles 20")
        .ended(0)
        .document();
    assert!(figures["figures"].is_array(), "{figures}");
    sandbox.write("trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1000,50\n2023-11-16 18:18:03,10,5\n");
    // A file is kept where it is said, a schema where it is.
    let (demo, kept) = if sandbox.ledger.file().is_some() {
        let kept = "--store sqlite:kept/recoup.db".to_owned();
        ("demo --trace trace.csv --keep kept".to_owned(), kept)
    } else {
        let kept = sandbox.store("kept");
        (format!("{kept} demo --trace trace.csv"), kept)
    };
    let demo = sandbox.line(&demo).ended(0).document();
    assert!(demo.is_object(), "{demo}");
    sandbox
        .line(&format!("{kept} audit"))
        .ended(0)
        .says("violations", 0);
    sandbox.line("demo --trace absent.csv").ended(1);
}

#[test]
fn help_and_version_are_answers() {
    let sandbox = Sandbox::new();
    for args in [
        &["--help"][..],
        &["job", "--help"],
        &["help", "import"],
        &["--version"],
    ] {
        assert!(!sandbox.plain(args).ended(0).stdout.is_empty(), "{args:?}");
        sandbox.run(args).ended(0).document();
    }
    assert!(
        sandbox
            .plain(&["--help"])
            .stdout
            .contains("RECOUP_BUSY_TIMEOUT_MS")
    );
}
