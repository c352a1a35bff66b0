//! The day of usage is the ledger's, to the microsecond.

use recoup::{Day, EventStore};

use crate::world::{EXTERNAL, World, account, at};

/// (zone, the last instant of a day, that day)
const MIDNIGHTS: [(&str, &str, &str); 4] = [
    ("UTC", "2026-11-29T23:59:59.999999Z", "2026-11-29"),
    ("Asia/Seoul", "2026-11-29T14:59:59.999999Z", "2026-11-29"),
    // Clocks go forward on 2026-03-08 and back on 2026-11-01: days of 23 and 25 hours.
    (
        "America/New_York",
        "2026-03-09T03:59:59.999999Z",
        "2026-03-08",
    ),
    (
        "America/New_York",
        "2026-11-02T04:59:59.999999Z",
        "2026-11-01",
    ),
];

#[tokio::test]
async fn fault_31_usage_counts_on_the_day_of_posting_in_the_ledgers_zone() {
    for (zone, last, day) in MIDNIGHTS {
        let day = Day::parse(day).unwrap();
        let world = World::with(last, zone).await;
        world.postpaid("acme").await;
        world.charge("before", "acme", EXTERNAL, 40).await;
        world
            .clock
            .set(recoup::Timestamp::from_micros(at(last).as_micros() + 1));
        world.charge("after", "acme", EXTERNAL, 2).await;
        // The refund counts on its own day, not on the charge's.
        world.fail("before", 1).await;
        let projections = world.project().await;
        let usage = projections
            .usage(&account("acme"), None, None)
            .await
            .unwrap();
        let shown: Vec<_> = usage
            .iter()
            .map(|row| (row.day, row.charged, row.refunded, row.jobs, row.net()))
            .collect();
        let expected = [(day, 40, 0, 1, 40), (day.next(), 2, 40, 1, -38)];
        assert_eq!(shown, expected, "{zone} {last}");
        assert_eq!(world.store.identity().zone.name(), zone);
    }
}

#[tokio::test]
async fn fault_31_both_days_of_a_range_are_included() {
    let world = World::with("2026-11-28T10:00:00Z", "UTC").await;
    world.postpaid("acme").await;
    for day in 28..=30 {
        world.clock.set(at(&format!("2026-11-{day}T10:00:00Z")));
        world
            .charge(&format!("j{day}"), "acme", EXTERNAL, day)
            .await;
    }
    let projections = world.project().await;
    let day = |text| Some(Day::parse(text).unwrap());
    let charged = async |from, to| {
        let usage = projections.usage(&account("acme"), from, to).await.unwrap();
        usage.iter().map(|row| row.charged).collect::<Vec<_>>()
    };
    assert_eq!(
        charged(day("2026-11-28"), day("2026-11-29")).await,
        [28, 29]
    );
    assert_eq!(charged(day("2026-11-29"), None).await, [29, 30]);
    assert_eq!(charged(None, day("2026-11-28")).await, [28]);
    assert_eq!(charged(day("2026-12-01"), None).await, [0_i64; 0]);
}
