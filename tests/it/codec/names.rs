//! Names of streams and ids of events: pinned, unambiguous, and read back.

use std::collections::BTreeMap;

use proptest::prelude::*;
use recoup::codec::{EventType, Metadata, Stream, StreamName, event_id};
use recoup::{AccountId, AdjustmentId, GrantId, JobId, Position, Revision};

use crate::values::{account_id, adjustment_id, command_id, grant_id, job_id};

#[test]
fn names_are_pinned() {
    let grant = |account: &str, grant: &str| Stream::Grant(account_id(account), grant_id(grant));
    for (stream, name) in [
        (Stream::Job(job_id("video-1")), "job-video%2D1"),
        (Stream::Job(job_id("A.z_0:9@x")), "job-A.z_0:9@x"),
        (
            Stream::Job(job_id("日本 語/é+%")),
            "job-%E6%97%A5%E6%9C%AC%20%E8%AA%9E%2F%C3%A9%2B%25",
        ),
        (grant("acme", "welcome"), "grant-acme+welcome"),
        (grant("a+b", "c"), "grant-a%2Bb+c"),
        (
            Stream::Adjustment(account_id("acme"), adjustment_id("x1")),
            "adjustment-acme+x1",
        ),
        (Stream::Limits(account_id("a b")), "limits-a%20b"),
    ] {
        assert_eq!(stream.name().as_str(), name);
        assert_eq!(stream.name().parse(), Ok(stream));
    }
}

#[test]
fn parts_that_join_alike_have_different_streams() {
    let parts = [
        ("a", "b+c"),
        ("a+b", "c"),
        ("a", "b%2Bc"),
        ("a%2Bb", "c"),
        ("a-b", "c"),
        ("a", "b-c"),
    ];
    let mut seen = BTreeMap::new();
    for (account, id) in parts {
        let (account, joined) = (account_id(account), format!("{account}+{id}"));
        for stream in [
            Stream::Grant(account.clone(), grant_id(id)),
            Stream::Adjustment(account.clone(), adjustment_id(id)),
            Stream::Limits(account_id(&joined)),
            Stream::Job(job_id(&joined)),
            Stream::Job(job_id(&format!("grant-{joined}"))),
        ] {
            if let Some(other) = seen.insert(stream.name(), stream.clone()) {
                assert_eq!(other, stream, "two streams with one name");
            }
        }
    }
}

#[test]
fn what_encoding_never_gives_names_no_stream() {
    for name in [
        "",
        "job",
        "job-",
        "Job-a",
        "jobs-a",
        "$ce-job",
        "job-a b",
        "job-a/b",
        "job-a-b",
        "job-a+b",
        "job-%",
        "job-%2",
        "job-%2d",
        "job-%2G",
        "job-%41",
        "job-%C3",
        "job-%0A",
        "job-%20a",
        "job-é",
        "grant-a",
        "grant-a+",
        "grant-+a",
        "grant-a+b+c",
        "adjustment-a%2Bb",
        "limits-a+b",
        "invoice-a",
    ] {
        let parsed = StreamName::from_stored(name).parse();
        assert!(parsed.is_err(), "{name:?} is read as {parsed:?}");
    }
    let long = format!("job-{}", "x".repeat(201));
    StreamName::from_stored(&long)
        .parse()
        .expect_err("an id has at most 200 bytes");
}

/// Any id: 1 to 200 bytes, every character that is allowed, with the ones that encoding is about more often than others.
fn any_id() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        4 => proptest::sample::select(vec!['+', '-', '%', ' ', '/', '.', '_', ':', '@', 'a', 'Z', '9', '2', 'B']),
        1 => any::<char>(),
    ];
    let text = proptest::collection::vec(character, 1..60);
    text.prop_map(String::from_iter)
        .prop_filter("an id", |text| JobId::new(text).is_ok())
}

proptest! {
    #[test]
    fn any_id_round_trips_through_its_streams_name(first in any_id(), second in any_id()) {
        let account = AccountId::new(&first).expect("checked");
        for stream in [
            Stream::Job(JobId::new(&first).expect("checked")),
            Stream::Grant(account.clone(), GrantId::new(&second).expect("checked")),
            Stream::Adjustment(account.clone(), AdjustmentId::new(&second).expect("checked")),
            Stream::Limits(account.clone()),
        ] {
            let name = stream.name();
            prop_assert!(name.as_str().is_ascii());
            prop_assert_eq!(name.is_job(), matches!(stream, Stream::Job(_)));
            prop_assert_eq!(name.parse(), Ok(stream));
        }
    }

    #[test]
    fn different_parts_have_different_names(a in any_id(), b in any_id(), c in any_id(), d in any_id()) {
        let grant = |account: &str, id: &str| Stream::Grant(account_id(account), grant_id(id)).name();
        prop_assert_eq!((&a, &b) == (&c, &d), grant(&a, &b) == grant(&c, &d));
    }

    #[test]
    fn a_name_that_is_read_is_the_one_that_is_written(text in "(job|grant|adjustment|limits)-[a-cA-F0-9%+ ]{1,12}") {
        let name = StreamName::from_stored(&text);
        if let Ok(stream) = name.parse() {
            prop_assert_eq!(stream.name(), name);
        }
    }
}

const CHARGED: EventType = EventType {
    name: "recoup.job.charged",
    version: 1,
};

#[test]
fn ids_of_events_are_pinned() {
    let stream = Stream::Job(job_id("video-1")).name();
    let id = event_id(&stream, Revision::FIRST, CHARGED, &command_id("c-1"));
    assert_eq!(id.to_string(), "9e12932e-4b7d-5538-b9d2-12d655c19d09");
    assert_eq!(id.get().get_version_num(), 5);
}

#[test]
fn an_events_id_depends_on_stream_revision_type_and_command() {
    let stream = Stream::Job(job_id("video-1")).name();
    let other = Stream::Job(job_id("video-2")).name();
    let refunded = EventType {
        name: "recoup.job.refunded",
        version: 1,
    };
    let (one, two) = (command_id("c-1"), command_id("c-2"));
    let id = event_id(&stream, Revision::FIRST, CHARGED, &one);
    assert_eq!(event_id(&stream, Revision::FIRST, CHARGED, &one), id);
    assert_ne!(event_id(&other, Revision::FIRST, CHARGED, &one), id);
    assert_ne!(event_id(&stream, Revision::new(1), CHARGED, &one), id);
    assert_ne!(event_id(&stream, Revision::FIRST, refunded, &one), id);
    assert_ne!(event_id(&stream, Revision::FIRST, CHARGED, &two), id);
}

#[test]
fn metadata_is_pinned_and_read_back() {
    let metadata = Metadata {
        correlation: "video-1".to_owned(),
        command: command_id("c \"1\""),
    };
    let json = metadata.to_json();
    assert_eq!(
        json,
        r#"{"$correlationId":"video-1","$causationId":"c \"1\""}"#
    );
    assert_eq!(
        Metadata::parse(json.as_bytes(), Position::new(1)),
        Ok(metadata)
    );
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"$correlationId":"x","$causationId":""}"#,
        "{\"$causationId\":\"c\"}",
    ] {
        let parsed = Metadata::parse(bad.as_bytes(), Position::new(3));
        assert!(
            parsed.is_err_and(|error| error.to_string().starts_with("event 3 is corrupt")),
            "{bad}"
        );
    }
}
