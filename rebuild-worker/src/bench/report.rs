//! The figures, as a table or as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::load::Measured;
use super::raw::Raw;
use crate::cli::table::{Column, table};

/// What was measured.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

/// One measurement.
#[derive(Debug)]
pub(super) struct Row {
    what: String,
    operations: Option<f64>,
    lifecycles: Option<f64>,
    events: Option<f64>,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    raw: Option<(&'static str, f64)>,
}

fn rate(count: u64, elapsed: Duration) -> f64 {
    // Counts of a benchmark are far below 2^53, where a float is exact.
    count as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

impl Row {
    pub(super) fn of(what: String, measured: &Measured) -> Self {
        let some = |count: u64| (count > 0).then(|| rate(count, measured.elapsed));
        Self {
            what,
            operations: some(measured.operations),
            lifecycles: some(measured.lifecycles),
            events: some(measured.events),
            p50_us: Some(measured.latency.value_at_quantile(0.5)),
            p99_us: Some(measured.latency.value_at_quantile(0.99)),
            raw: None,
        }
    }

    pub(super) fn events(what: String, events: i64, elapsed: Duration) -> Self {
        let events = Some(rate(events.unsigned_abs(), elapsed));
        Self {
            what,
            operations: None,
            lifecycles: None,
            events,
            p50_us: None,
            p99_us: None,
            raw: None,
        }
    }

    pub(super) fn beside(mut self, raw: &Raw) -> Self {
        self.raw = Some((raw.name, rate(raw.events, raw.elapsed)));
        self
    }

    fn ratio(&self) -> Option<f64> {
        let (_, raw) = self.raw?;
        Some(self.events? / raw)
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "operations_per_s": self.operations.map(f64::round),
            "lifecycles_per_s": self.lifecycles.map(f64::round),
            "events_per_s": self.events.map(f64::round),
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "raw": self.raw.map(|(name, _)| name),
            "raw_events_per_s": self.raw.map(|(_, events)| events.round()),
            "ratio": self.ratio(),
        })
    }
}

impl Report {
    pub(super) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The figures as one JSON document.
    pub fn document(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({ "figures": rows })
    }

    /// The figures as a table.
    pub fn text(&self) -> String {
        let number =
            |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.0}"));
        let ms = |us: Option<u64>| {
            us.map_or(String::new(), |us| {
                format!("{}.{:03}", us / 1000, us % 1000)
            })
        };
        let rows = self.rows.iter().map(|row| {
            vec![
                row.what.clone(),
                number(row.operations),
                number(row.lifecycles),
                number(row.events),
                ms(row.p50_us),
                ms(row.p99_us),
                number(row.raw.map(|(_, events)| events)),
                row.ratio()
                    .map_or(String::new(), |ratio| format!("{:.0} %", ratio * 100.0)),
            ]
        });
        let columns = [
            Column::Text("what"),
            Column::Number("operations/s"),
            Column::Number("lifecycles/s"),
            Column::Number("events/s"),
            Column::Number("p50 ms"),
            Column::Number("p99 ms"),
            Column::Number("raw events/s"),
            Column::Number("of raw"),
        ];
        let mut text = table(&columns, rows);
        if let Some((name, _)) = self.rows.iter().find_map(|row| row.raw) {
            text.push_str("\nraw: ");
            text.push_str(name);
            text.push_str(", in the same folder and the same run");
        }
        text
    }
}
