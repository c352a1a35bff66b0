//! Golden bytes: what every version of every type looks like on disk, for ever.
//!
//! postcard is not self-describing: a field that is added, removed or moved changes what old bytes mean. A line here is never edited; a
//! new version of a type adds lines. Amounts are zigzag varints (−145 is `a102`), texts and lists have their length in front, an
//! `Option` is `00` or `01` and its value.

use std::collections::{BTreeMap, BTreeSet};

use recoup::codec::{Catalog, Decoded, EventType, decode};

use super::{hex, recorded, samples, stored, unhex};

/// Version 1 of every type, by the sample's name: before the comma stands the type's.
const VERSION_1: &[(&str, &str)] = &[
    (
        "charged, half even, external",
        "0461636d650105766964656fa102000180c0a9e9ec93b00601d41f0b07323032362d3131020202696e904b3cd00f036f75741478d00f00058827c0cf2480b8992980b89929e0d403",
    ),
    (
        "charged, up, claimed",
        "0461636d650105766964656fa102000180c0a9e9ec93b00601d41f0b07323032362d3131000202696e904b3cd00f036f75741478d00f01058827c0cf2480b8992980b89929e0d403",
    ),
    (
        "charged, down, claimed",
        "0461636d650105766964656fa102000180c0a9e9ec93b00601d41f0b07323032362d3131010202696e904b3cd00f036f75741478d00f01058827c0cf2480b8992980b89929e0d403",
    ),
    ("attempt_started", "0100e0d40300"),
    ("attempt_started, worker", "0101027731e0d40300"),
    (
        "attempt_started, worker and hold",
        "0101027731e0d403010461636d650105766964656f00a2020180c0a9e9ec93b00601d41f0b",
    ),
    ("lease_extended", "02e0d403"),
    ("attempt_failed, retryable", "ac02000000"),
    (
        "attempt_failed, terminal, reason",
        "ac0201010d6e6f207375636820636f64656300",
    ),
    ("attempt_failed, cancelled", "ac02020000"),
    ("attempt_failed, lease_until", "ac0200000101"),
    ("attempt_failed, start_by", "ac0200000100"),
    ("attempt_failed, give_up_at", "ac0200000102"),
    ("retry_scheduled", "01b82a80b89929"),
    (
        "refunded",
        "0461636d650105766964656fa202000180c0a9e9ec93b00601d41f0b",
    ),
    (
        "refunded, held",
        "0461636d650105766964656fa202a2020180c0a9e9ec93b00601d41f0b",
    ),
    ("failed", "00"),
    (
        "failed, hold",
        "010461636d650105766964656f00a1020180c0a9e9ec93b00601d41f0b",
    ),
    ("dead_lettered, cap", "0000"),
    (
        "dead_lettered, window, hold",
        "01010461636d650105766964656f00a1020180c0a9e9ec93b00601d41f0b",
    ),
    ("dead_lettered, not started", "0200"),
    ("delivered", "0100"),
    ("delivered, result", "01010a73333a2f2f6f75742f31"),
    (
        "reclaimed",
        "0461636d650105766964656fa102000180c0a9e9ec93b00601d41f0b",
    ),
    (
        "reclaimed, held",
        "0461636d650105766964656fa102a1020180c0a9e9ec93b00601d41f0b",
    ),
    ("cancelled", "0000"),
    (
        "cancelled, reason, hold",
        "010a6e6f742077616e746564010461636d650105766964656f00a1020180c0a9e9ec93b00601d41f0b",
    ),
    ("discarded", "00"),
    ("discarded, reason", "0108676976656e207570"),
    (
        "redriven",
        "0580b89929000461636d650105766964656f00a2020180c0a9e9ec93b00601d41f0b",
    ),
    (
        "redriven, reason",
        "0580b89929010566697865640461636d650105766964656f00a2020180c0a9e9ec93b00601d41f0b",
    ),
    ("contradicted, failed", "0001010101046c61746500"),
    (
        "contradicted, succeeded",
        "01020000010a73333a2f2f6f75742f32",
    ),
    ("voided", "03632d31"),
    ("granted", "0267310461636d6500d00f000000"),
    ("adjusted", "0278310461636d65000900000008676f6f6477696c6c00"),
    (
        "adjusted, job",
        "0278310461636d65000a00000008676f6f6477696c6c0107766964656f2d31",
    ),
    ("limits_set, floor", "0461636d6500c70100"),
    ("limits_set, no floor, cap", "0461636d650101904e"),
];

#[test]
fn bytes_of_version_1_are_pinned() {
    let golden: BTreeMap<_, _> = VERSION_1.iter().copied().collect();
    let samples = samples::all();
    assert_eq!(
        samples.len(),
        golden.len(),
        "every sample has its bytes, and every bytes a sample"
    );
    for (name, event) in samples {
        assert_eq!(hex(&event.encode()), golden[name], "{name}");
    }
}

#[test]
fn pinned_bytes_are_read_back() {
    let samples: BTreeMap<_, _> = samples::all().into_iter().collect();
    for (name, bytes) in VERSION_1 {
        let event = &samples[name];
        let EventType {
            name: type_name, ..
        } = event.event_type();
        let read = decode(&recorded(type_name, 1, unhex(bytes)));
        assert_eq!(read, Ok(Decoded::Event(event.clone())), "{name}");
    }
}

#[test]
fn every_type_and_version_that_is_read_has_pinned_bytes() {
    let pinned: BTreeSet<_> = samples::all()
        .iter()
        .map(|(_, event)| event.event_type())
        .collect();
    let read: BTreeSet<_> = Catalog::standard().types().collect();
    assert_eq!(pinned, read);
    // The day a version 2 lands, this asks for the bytes of both.
    assert!(
        read.iter().all(|event_type| event_type.version == 1),
        "{read:?}"
    );
}

#[test]
fn names_of_types_are_pinned() {
    let names: Vec<_> = Catalog::standard()
        .types()
        .map(|event_type| event_type.name)
        .collect();
    let expected = [
        "recoup.account.adjusted",
        "recoup.account.granted",
        "recoup.account.limits_set",
        "recoup.job.attempt_failed",
        "recoup.job.attempt_started",
        "recoup.job.cancelled",
        "recoup.job.charged",
        "recoup.job.contradicted",
        "recoup.job.dead_lettered",
        "recoup.job.delivered",
        "recoup.job.discarded",
        "recoup.job.failed",
        "recoup.job.lease_extended",
        "recoup.job.reclaimed",
        "recoup.job.redriven",
        "recoup.job.refunded",
        "recoup.job.retry_scheduled",
        "recoup.job.voided",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_sample_is_named_after_its_event() {
    for (name, event) in samples::all() {
        let type_name = name.split(',').next().expect("a name has a first part");
        assert_eq!(type_name, event.name());
        assert!(
            stored(&event).type_name.ends_with(&format!(".{type_name}")),
            "{name}"
        );
    }
}
