//! A historical fault, put in on purpose: a consumer that looks its place up under a wrong key, finds none, and applies its backlog again.
//! It adds to sums, so every pass shows more than was: each event of two days comes once more, and two in five of them twice more, which
//! shows 2.4 times the truth.
//!
//! Then what the ledger has against it, three times: verify, which shows; repair; verify again, which must find nothing.

use recoup::codec::{Decoded, Event, decode};
use recoup::job::JobEvent;
use recoup::sql::{Database, Transaction};
use recoup::store::StoreError;
use recoup::{Day, EventStore, Position, values};
use recoup_projections::Projections;

use super::facts::{Rebuilt, RebuiltRow, RebuiltRun};
use crate::rebuild::{
    Control, Difference, Mode, Origin, Request, Run, Window, differences, rebuild,
};

/// How many events the consumer takes at a time.
const PAGE: usize = 1_000;

/// How many rows are shown.
const SHOWN: usize = 4;

/// Spoils the usage of the last two days, and repairs it.
pub(super) async fn and_repair(projections: &Projections, last: Day) -> anyhow::Result<Rebuilt> {
    let database = projections.database();
    projections.catch_up().await?;
    let days = (last.previous(), last);
    let again = consume_again(database, days).await?;
    let verified = run(projections, Mode::Verify, days).await?;
    let found = differences(database, verified.run, None, usize::MAX).await?;
    let repaired = run(projections, Mode::Repair, days).await?;
    let clean = run(projections, Mode::Verify, days).await?;
    Ok(Rebuilt {
        applied_again: again,
        runs: [&verified, &repaired, &clean].map(told).into(),
        rows: shown(&found)?,
        is_clean: clean.rows_different == 0 && repaired.rows_different == verified.rows_different,
    })
}

async fn run(projections: &Projections, mode: Mode, days: (Day, Day)) -> anyhow::Result<Run> {
    let request = Request {
        window: Window::days(days.0, days.1)?,
        account: None,
        mode,
        origin: Origin::Operator,
    };
    Ok(rebuild(projections, &request, &Control::default()).await?)
}

fn told(run: &Run) -> RebuiltRun {
    RebuiltRun {
        mode: run.mode.clone(),
        from: run.from.clone(),
        to: run.to.clone(),
        events_read: run.events_read,
        rows_checked: run.rows_checked,
        rows_different: run.rows_different,
        worst_ratio: run.worst_ratio,
    }
}

/// The rows that are farthest off, by what they show too much.
fn shown(found: &[Difference]) -> anyhow::Result<Vec<RebuiltRow>> {
    let mut rows = Vec::with_capacity(found.len());
    for found in found {
        let charged = |row: &Option<String>| -> anyhow::Result<i64> {
            let row = row.as_deref().unwrap_or("null");
            let row: serde_json::Value = serde_json::from_str(row)?;
            Ok(row["charged"].as_i64().unwrap_or(0))
        };
        rows.push(RebuiltRow {
            account: found.account.clone(),
            day: found.day.clone().unwrap_or_default(),
            kind: found.kind.clone().unwrap_or_default(),
            charged_shown: charged(&found.before)?,
            charged: charged(&found.after)?,
        });
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.charged_shown.saturating_sub(row.charged)));
    rows.truncate(SHOWN);
    Ok(rows)
}

/// The faulty consumer. Gives how often it counted a charge again.
async fn consume_again(database: &Database, days: (Day, Day)) -> anyhow::Result<u64> {
    let zone = database.identity().zone;
    let again = database.write(move |tx| {
        let (mut again, mut after) = (0, Position::START);
        loop {
            let page = tx.read_page(after, PAGE)?;
            let Some(last) = page.last() else {
                return Ok::<u64, StoreError>(again);
            };
            after = last.position;
            for recorded in &page {
                let day = zone.day_of(recorded.posted_at);
                if let Ok(Decoded::Event(Event::Job(JobEvent::Charged(charged)))) = decode(recorded)
                    && (days.0..=days.1).contains(&day)
                {
                    let times = if recorded.position.get() % 5 < 2 {
                        2
                    } else {
                        1
                    };
                    for _ in 0..times {
                        again += count_again(tx, &day.to_string(), &charged.posting)?;
                    }
                }
            }
        }
    });
    Ok(again.await?)
}

fn count_again(
    tx: &Transaction<'_>,
    day: &str,
    posting: &recoup::account::Posting,
) -> Result<u64, StoreError> {
    // It does not ask whether the row has had the event.
    let sql = "UPDATE daily_usage SET charged = charged + ?4, jobs = jobs + 1
        WHERE account = ?1 AND day = ?2 AND kind = ?3";
    let kind = posting.kind.as_ref().map_or("", recoup::Kind::as_str);
    let values = values![posting.account.as_str(), day, kind, -posting.amount];
    tx.execute(sql, values)
}
