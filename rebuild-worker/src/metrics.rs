//! Every metric of the binary: name, kind, unit, help, and the one function that sets it.
//!
//! Names begin with `recoup_`, units are base units, counters end in `_total`. Gauges of lag and life are set when they are scraped, from
//! what was measured at that moment, so that a dead loop cannot freeze them; where nothing could be measured they are NaN. Labels
//! are names of projections, loops, timers and results: few, and never anything that a caller chooses.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use recoup_projections::Projection;

use crate::up::health::{Measured, lag};
use crate::up::status::State;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

/// (name, kind, unit, help)
type Declared = (&'static str, Kind, Unit, &'static str);

const STORE_UP: &str = "recoup_store_up";
const STORE_HEAD: &str = "recoup_store_head";
const EVENTS_APPENDED: &str = "recoup_events_appended_total";
const POSITION: &str = "recoup_projection_position";
const LAG_EVENTS: &str = "recoup_projection_lag_events";
const LAG_SECONDS: &str = "recoup_projection_lag_seconds";
const HALTED: &str = "recoup_projection_halted";
const REFUSED: &str = "recoup_projection_refused";
const SKIPS: &str = "recoup_projection_skips";
const EVENTS_APPLIED: &str = "recoup_events_applied_total";
const DEAD_LETTERS: &str = "recoup_dead_letters_open";
const FIGURES_HALTED: &str = "recoup_account_figures_halted";
const FIGURES_LAG_SECONDS: &str = "recoup_account_figures_lag_seconds";
const RESERVATIONS: &str = "recoup_reservations_open";
const RESERVATION_AGE: &str = "recoup_reservation_oldest_age_seconds";
const LOOP_UP: &str = "recoup_loop_up";
const LOOP_RESTARTS: &str = "recoup_loop_restarts_total";
const LOOP_BEAT_AGE: &str = "recoup_loop_last_beat_age_seconds";
const REBUILD_RUNS: &str = "recoup_rebuild_runs_total";
const REBUILD_ROWS_DIFFERENT: &str = "recoup_rebuild_rows_different_total";
const REBUILD_LAST_SUCCESS: &str = "recoup_rebuild_last_success_timestamp_seconds";
const DUE_EXPIRED: &str = "recoup_due_expired_total";
const DUE_OVERDUE: &str = "recoup_due_oldest_overdue_seconds";

/// Whether this process's ledger has account figures beside a log elsewhere.
static FIGURES_TOLD: AtomicBool = AtomicBool::new(false);

const DECLARED: [Declared; 23] = [
    (
        STORE_UP,
        Kind::Gauge,
        Unit::Count,
        "1 if the store answered this scrape.",
    ),
    (
        STORE_HEAD,
        Kind::Gauge,
        Unit::Count,
        "Last position of the log.",
    ),
    (
        EVENTS_APPENDED,
        Kind::Counter,
        Unit::Count,
        "Events in the log, by whatever process they were appended; only where the log is in tables.",
    ),
    (
        POSITION,
        Kind::Gauge,
        Unit::Count,
        "Last position that a projection has applied.",
    ),
    (
        LAG_EVENTS,
        Kind::Gauge,
        Unit::Count,
        "Events in the log that a projection has not applied.",
    ),
    (
        LAG_SECONDS,
        Kind::Gauge,
        Unit::Seconds,
        "Age of the oldest event that a projection has not applied; 0 at the head.",
    ),
    (
        HALTED,
        Kind::Gauge,
        Unit::Count,
        "1 if an event stands in a projection's way.",
    ),
    (
        REFUSED,
        Kind::Gauge,
        Unit::Count,
        "1 if a projection's rows are of another definition or another log.",
    ),
    (
        SKIPS,
        Kind::Gauge,
        Unit::Count,
        "Events that a projection lacks because they were skipped.",
    ),
    (
        EVENTS_APPLIED,
        Kind::Counter,
        Unit::Count,
        "Events that this process applied or skipped, by projection.",
    ),
    (
        DEAD_LETTERS,
        Kind::Gauge,
        Unit::Count,
        "Jobs that ran out of attempts and wait for a person.",
    ),
    (
        FIGURES_HALTED,
        Kind::Gauge,
        Unit::Count,
        "1 if an event stands in the way of account figures beside a log elsewhere: no charge is admitted.",
    ),
    (
        FIGURES_LAG_SECONDS,
        Kind::Gauge,
        Unit::Seconds,
        "Age of the oldest event that account figures beside a log elsewhere lack; 0 at the head.",
    ),
    (
        RESERVATIONS,
        Kind::Gauge,
        Unit::Count,
        "Charges on their way to a log elsewhere whose credit is reserved.",
    ),
    (
        RESERVATION_AGE,
        Kind::Gauge,
        Unit::Seconds,
        "Age of the oldest such reservation; 0 if there is none.",
    ),
    (
        LOOP_UP,
        Kind::Gauge,
        Unit::Count,
        "1 if a loop runs and beats as often as it promised to.",
    ),
    (
        LOOP_RESTARTS,
        Kind::Counter,
        Unit::Count,
        "How often a loop was started again.",
    ),
    (
        LOOP_BEAT_AGE,
        Kind::Gauge,
        Unit::Seconds,
        "Time since a loop's last sign of life.",
    ),
    (
        REBUILD_RUNS,
        Kind::Counter,
        Unit::Count,
        "Rebuild runs, by result.",
    ),
    (
        REBUILD_ROWS_DIFFERENT,
        Kind::Counter,
        Unit::Count,
        "Rows that rebuild runs found different from the log.",
    ),
    (
        REBUILD_LAST_SUCCESS,
        Kind::Gauge,
        Unit::Seconds,
        "When a rebuild run last went well, as Unix time.",
    ),
    (
        DUE_EXPIRED,
        Kind::Counter,
        Unit::Count,
        "Timers that this process acted on, by timer.",
    ),
    (
        DUE_OVERDUE,
        Kind::Gauge,
        Unit::Seconds,
        "How long the oldest timer that is over has waited.",
    ),
];

/// Sets up the recorder of this process, once, and describes every metric; gives what they are rendered with.
pub fn install() -> PrometheusHandle {
    static EXPORTER: OnceLock<PrometheusHandle> = OnceLock::new();
    let exporter = EXPORTER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let exporter = recorder.handle();
        // Another recorder may be there only if this is linked into another program; then that one is fed.
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another recorder of metrics is installed: /metrics stays empty");
        }
        describe();
        exporter
    });
    exporter.clone()
}

fn describe() {
    for (name, kind, unit, help) in DECLARED {
        match kind {
            Kind::Counter => describe_counter!(name, unit, help),
            Kind::Gauge => describe_gauge!(name, unit, help),
        }
    }
    for projection in Projection::ALL {
        // From 0 on: a rate over a counter that appears with its first event misses that one.
        events_applied(projection.name(), 0);
    }
}

/// Counts events that were applied to a projection.
pub fn events_applied(projection: &'static str, events: u64) {
    counter!(EVENTS_APPLIED, "projection" => projection).increment(events);
}

/// Shows a loop's restarts from 0 on.
pub fn declare_loop(name: &'static str) {
    counter!(LOOP_RESTARTS, "loop" => name).increment(0);
}

/// Counts that a loop was started again.
pub fn loop_restarted(name: &'static str) {
    counter!(LOOP_RESTARTS, "loop" => name).increment(1);
}

/// Counts a rebuild run by its result, and the rows that it found different.
pub fn rebuild_ran(result: &'static str, rows_different: u64) {
    counter!(REBUILD_RUNS, "result" => result).increment(1);
    counter!(REBUILD_ROWS_DIFFERENT).increment(rows_different);
}

/// Counts timers that were acted on.
pub fn due_expired(timer: &'static str, count: u64) {
    counter!(DUE_EXPIRED, "timer" => timer).increment(count);
}

/// Sets what is measured for a scrape.
pub fn set_measured(measured: &Measured) {
    for view in &measured.loops {
        let is_up = view.state == State::Running && view.complaint().is_none();
        gauge!(LOOP_UP, "loop" => view.name).set(flag(is_up));
        gauge!(LOOP_BEAT_AGE, "loop" => view.name).set(view.last_beat_age_seconds);
    }
    gauge!(STORE_UP).set(flag(measured.standing.is_ok()));
    let Ok(standing) = &measured.standing else {
        forget_standing();
        return;
    };
    let head = standing.head.get();
    gauge!(STORE_HEAD).set(head as f64);
    if let Some(figures) = &standing.figures {
        let followed = &figures.followed;
        FIGURES_TOLD.store(true, Ordering::Relaxed);
        gauge!(FIGURES_HALTED).set(flag(followed.halted.is_some()));
        gauge!(FIGURES_LAG_SECONDS).set(lag(figures.waiting_since, measured.at).as_secs_f64());
        gauge!(RESERVATIONS).set(followed.reservations as f64);
        let oldest = followed
            .oldest_reservation
            .map_or(0.0, |made| measured.at.since(made).as_secs_f64());
        gauge!(RESERVATION_AGE).set(oldest);
    } else {
        // In a log in tables positions have no holes: the head is the number of events.
        counter!(EVENTS_APPENDED).absolute(head.unsigned_abs());
    }
    gauge!(DEAD_LETTERS).set(standing.dead_letters_open as f64);
    let overdue = standing
        .first_deadline
        .map_or(0.0, |deadline| measured.at.since(deadline).as_secs_f64());
    gauge!(DUE_OVERDUE).set(overdue);
    let rebuilt = standing
        .last_rebuild
        .map_or(f64::NAN, |at| at.as_micros() as f64 / 1e6);
    gauge!(REBUILD_LAST_SUCCESS).set(rebuilt);
    for stand in &standing.projections {
        let checkpoint = &stand.checkpoint;
        let set =
            |name, value| gauge!(name, "projection" => checkpoint.projection.name()).set(value);
        set(POSITION, checkpoint.position.get() as f64);
        set(LAG_EVENTS, checkpoint.lag_events as f64);
        set(
            LAG_SECONDS,
            lag(stand.waiting_since, measured.at).as_secs_f64(),
        );
        set(HALTED, flag(checkpoint.halted.is_some()));
        set(REFUSED, flag(stand.refused.is_some()));
        set(SKIPS, stand.skips as f64);
    }
}

/// Nothing could be measured: no figure is better than an old one.
fn forget_standing() {
    for name in [STORE_HEAD, DEAD_LETTERS, DUE_OVERDUE, REBUILD_LAST_SUCCESS] {
        gauge!(name).set(f64::NAN);
    }
    if FIGURES_TOLD.load(Ordering::Relaxed) {
        for name in [
            FIGURES_HALTED,
            FIGURES_LAG_SECONDS,
            RESERVATIONS,
            RESERVATION_AGE,
        ] {
            gauge!(name).set(f64::NAN);
        }
    }
    for projection in Projection::ALL {
        for name in [POSITION, LAG_EVENTS, LAG_SECONDS, HALTED, REFUSED, SKIPS] {
            gauge!(name, "projection" => projection.name()).set(f64::NAN);
        }
    }
}

const fn flag(is_set: bool) -> f64 {
    if is_set { 1.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_they_are_and_what_they_count_in() {
        for (name, kind, unit, help) in DECLARED {
            assert!(name.starts_with("recoup_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
            assert_eq!(name.ends_with("_seconds"), unit == Unit::Seconds, "{name}");
            assert!(help.ends_with('.'), "{name}");
        }
    }
    /// What was scraped before must not look like what is so now.
    #[test]
    fn a_store_that_does_not_answer_leaves_no_old_figures() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let exporter = recorder.handle();
        let jobs = r#"recoup_projection_lag_events{projection="jobs"}"#;
        let shown = metrics::with_local_recorder(&recorder, || {
            gauge!(LAG_EVENTS, "projection" => "jobs").set(3.0);
            let before = exporter.render();
            assert!(before.contains(&format!("{jobs} 3\n")), "{before}");
            set_measured(&Measured {
                standing: Err("nothing within 2s".to_owned()),
                at: recoup::Timestamp::from_micros(0),
                loops: Vec::new(),
            });
            exporter.render()
        });
        for line in [&format!("{jobs} NaN\n"), "recoup_store_up 0\n"] {
            assert!(shown.contains(line), "{shown}");
        }
    }
}
