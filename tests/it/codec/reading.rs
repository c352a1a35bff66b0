//! The four ends of reading: an event, a retired one, one of the future, and bytes that are no event.

use proptest::prelude::*;
use recoup::Position;
use recoup::account::{AccountEvent, Granted, Posting};
use recoup::codec::{Catalog, CodecError, Decoded, Event, EventType, decode};
use serde::{Deserialize, Serialize};

use super::{hex, recorded, samples, stored};
use crate::values::{account_id, grant_id};

const GRANTED: &str = "test.granted";

/// What a grant was before accounts had postings: the bytes that an upcaster still has to read.
#[derive(Debug, Serialize, Deserialize)]
struct GrantedV1 {
    account: String,
    grant: String,
    amount: u32,
}

fn granted(account: &str, grant: &str, amount: i64) -> Event {
    let posting = Posting {
        account: account_id(account),
        kind: None,
        amount,
        held: 0,
        charged_at: None,
        budget_month: None,
    };
    Event::Account(AccountEvent::Granted(Granted {
        grant: grant_id(grant),
        posting,
    }))
}

fn upcast_v1(bytes: &[u8]) -> Result<Event, postcard::Error> {
    let old: GrantedV1 = postcard::from_bytes(bytes)?;
    Ok(granted(&old.account, &old.grant, i64::from(old.amount)))
}

fn read_v2(bytes: &[u8]) -> Result<Event, postcard::Error> {
    let body: Granted = postcard::from_bytes(bytes)?;
    Ok(Event::Account(AccountEvent::Granted(body)))
}

/// A catalog in which a type has two versions, and another is retired.
fn catalog() -> Catalog {
    Catalog::default()
        .with(
            EventType {
                name: GRANTED,
                version: 1,
            },
            upcast_v1,
        )
        .with(
            EventType {
                name: GRANTED,
                version: 2,
            },
            read_v2,
        )
        .with(
            EventType {
                name: "test.noticed",
                version: 1,
            },
            read_v2,
        )
        .retire("test.noticed")
}

#[test]
fn an_old_version_is_read_as_the_event_of_today() {
    let old = GrantedV1 {
        account: "acme".to_owned(),
        grant: "g1".to_owned(),
        amount: 1_000,
    };
    let old = postcard::to_stdvec(&old).expect("it serializes");
    assert_eq!(
        hex(&old),
        "0461636d65026731e807",
        "the old bytes themselves are pinned"
    );
    let today = granted("acme", "g1", 1_000);
    let read = |version, data| catalog().decode(&recorded(GRANTED, version, data));
    assert_eq!(read(1, old), Ok(Decoded::Event(today.clone())));
    assert_eq!(read(2, today.encode()), Ok(Decoded::Event(today)));
}

#[test]
fn old_bytes_under_the_new_version_are_corrupt_and_not_misread() {
    let old = GrantedV1 {
        account: "acme".to_owned(),
        grant: "g1".to_owned(),
        amount: 1_000,
    };
    let old = postcard::to_stdvec(&old).expect("it serializes");
    let read = catalog().decode(&recorded(GRANTED, 2, old));
    assert!(matches!(read, Err(CodecError::Corrupt { .. })), "{read:?}");
}

#[test]
fn a_retired_type_is_skipped_in_every_version_and_whatever_its_bytes() {
    for version in [1, 2, u16::MAX] {
        let read = catalog().decode(&recorded("test.noticed", version, vec![0xff; 9]));
        assert_eq!(read, Ok(Decoded::Retired), "version {version}");
    }
}

#[test]
fn a_type_never_heard_of_and_a_newer_version_are_too_new() {
    let too_new = |name: &str, version| {
        let (position, name) = (Position::new(7), name.to_owned());
        Err(CodecError::TooNew {
            position,
            name,
            version,
        })
    };
    let read = |name: &str, version| decode(&recorded(name, version, vec![0]));
    for (_, event) in samples::all() {
        let EventType { name, version } = event.event_type();
        let next = recorded(name, version + 1, event.encode());
        assert_eq!(decode(&next), too_new(name, version + 1));
    }
    assert_eq!(
        read("recoup.job.teleported", 1),
        too_new("recoup.job.teleported", 1)
    );
    assert_eq!(read("", 1), too_new("", 1));
    // A name that a known one begins with, or ends with, is another name.
    assert_eq!(read("recoup.job.fail", 1), too_new("recoup.job.fail", 1));
    assert_eq!(
        read("recoup.job.failed2", 1),
        too_new("recoup.job.failed2", 1)
    );
    assert_eq!(
        read("RECOUP.JOB.FAILED", 1),
        too_new("RECOUP.JOB.FAILED", 1)
    );
}

#[test]
fn a_version_that_never_was_is_corrupt() {
    let read = decode(&recorded("recoup.job.failed", 0, vec![0]));
    assert!(matches!(read, Err(CodecError::Corrupt { .. })), "{read:?}");
}

#[test]
fn every_event_that_was_cut_short_or_has_more_behind_it_is_corrupt() {
    for (name, event) in samples::all() {
        let whole = stored(&event);
        let with = |data: Vec<u8>| recorded(&whole.type_name, whole.version, data);
        for length in 0..whole.data.len() {
            let read = decode(&with(whole.data[..length].to_vec()));
            assert!(
                matches!(read, Err(CodecError::Corrupt { .. })),
                "{name} cut to {length}: {read:?}"
            );
        }
        for more in [0x00, 0x01, 0xff] {
            let read = decode(&with([&whole.data[..], &[more]].concat()));
            let corrupt =
                matches!(&read, Err(CodecError::Corrupt { position, .. }) if position.get() == 7);
            assert!(corrupt, "{name} and {more:02x}: {read:?}");
        }
    }
}

/// The bytes of `granted` with one field replaced by what no value of its type can be.
#[test]
fn values_outside_their_type_are_corrupt() {
    let long = |bytes: usize| {
        // A text of that many bytes, its length in front as a varint.
        let length = u16::try_from(bytes).expect("a short text");
        let low = u8::try_from(length & 0x7f).expect("seven bits") | 0x80;
        let high = u8::try_from(length >> 7).expect("seven bits");
        [vec![low, high], vec![b'x'; bytes]].concat()
    };
    let cases: [(&str, &str, Vec<u8>); 8] = [
        ("an empty command id", "recoup.job.voided", vec![0]),
        ("a control character", "recoup.job.voided", vec![1, b'\n']),
        ("a command id of 201 bytes", "recoup.job.voided", long(201)),
        (
            "a text that is not UTF-8",
            "recoup.job.voided",
            vec![2, 0xc3, 0x28],
        ),
        (
            "a reason of 501 bytes",
            "recoup.job.discarded",
            [vec![1], long(501)].concat(),
        ),
        (
            "a cause that is none",
            "recoup.job.dead_lettered",
            vec![3, 0],
        ),
        ("an option that is neither", "recoup.job.failed", vec![2]),
        (
            "an attempt beyond 32 bits",
            "recoup.job.delivered",
            vec![0xff, 0xff, 0xff, 0xff, 0x7f, 0],
        ),
    ];
    for (what, type_name, data) in cases {
        let read = decode(&recorded(type_name, 1, data));
        assert!(
            matches!(read, Err(CodecError::Corrupt { .. })),
            "{what}: {read:?}"
        );
    }
}

#[test]
fn a_budget_month_that_no_calendar_has_is_corrupt() {
    let (_, refunded) = samples::all()
        .into_iter()
        .find(|(name, _)| *name == "refunded")
        .expect("a sample");
    let bytes = refunded.encode();
    // The month is the posting's last byte.
    assert_eq!(bytes.last(), Some(&11));
    for month in [0, 13, 255] {
        let mut bytes = bytes.clone();
        *bytes.last_mut().expect("not empty") = month;
        let read = decode(&recorded("recoup.job.refunded", 1, bytes));
        assert!(
            matches!(read, Err(CodecError::Corrupt { .. })),
            "month {month}: {read:?}"
        );
    }
}

fn any_type() -> impl Strategy<Value = &'static str> {
    let names: Vec<_> = Catalog::standard()
        .types()
        .map(|event_type| event_type.name)
        .collect();
    proptest::sample::select(names)
}

proptest! {
    #[test]
    fn random_bytes_are_an_event_or_corrupt_and_never_a_panic(
        type_name in any_type(),
        data in proptest::collection::vec(any::<u8>(), 0..96),
    ) {
        match decode(&recorded(type_name, 1, data)) {
            Ok(Decoded::Event(event)) => prop_assert_eq!(event.event_type().name, type_name),
            Err(CodecError::Corrupt { position, .. }) => prop_assert_eq!(position, Position::new(7)),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_changed_byte_is_another_event_or_corrupt_and_never_a_panic(
        sample in proptest::sample::select(samples::all()),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut changed = stored(&sample.1);
        let mut data = changed.data.to_vec();
        let index = at.index(data.len());
        data[index] = byte;
        changed.data = data.into();
        let read = decode(&changed);
        let is_neither = matches!(read, Err(CodecError::TooNew { .. }) | Ok(Decoded::Retired));
        prop_assert!(!is_neither, "{:?}", read);
    }

    #[test]
    fn a_length_that_promises_more_than_there_is_takes_no_memory(length in any::<u64>()) {
        // A list of price lines, or a text, whose length in front is a lie.
        let mut data = Vec::new();
        let mut rest = length;
        while rest >= 0x80 {
            data.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
            rest >>= 7;
        }
        data.push(u8::try_from(rest).expect("seven bits"));
        let read = decode(&recorded("recoup.job.voided", 1, data));
        let is_corrupt = matches!(read, Err(CodecError::Corrupt { .. }));
        prop_assert!(is_corrupt, "{:?}", read);
    }
}
