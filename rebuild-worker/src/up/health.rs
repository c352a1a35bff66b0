//! Readiness: whether what this process shows and does may be relied upon, and if not, why not.
//!
//! The judgement is a pure function of what was measured when it was asked for. Not ready are: a store that does not answer, a loop that
//! is not alive or has not beaten for longer than it promised to, a projection that is halted or of another definition, account figures that are
//! halted, and either whose oldest unapplied event is older than [`MAX_LAG`]. Lag is counted against the head in the store.

use std::time::Duration;

use recoup::Timestamp;
use recoup_projections::{Figures, Stand, Standing};
use serde_json::{Value, json};

use super::status::LoopView;

/// How old the oldest unapplied event may be.
pub const MAX_LAG: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The projections, or why the store did not tell.
    pub standing: Result<Standing, String>,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// The loops.
    pub loops: Vec<LoopView>,
}

/// How long the oldest event that is missing somewhere has waited; zero at the head.
#[must_use]
pub fn lag(waiting_since: Option<Timestamp>, now: Timestamp) -> Duration {
    waiting_since.map_or(Duration::ZERO, |since| now.since(since))
}

/// Whether all is well, and the document that says so or why not.
#[must_use]
pub fn judge(measured: &Measured) -> (bool, Value) {
    let mut reasons: Vec<String> = measured
        .loops
        .iter()
        .filter_map(LoopView::complaint)
        .collect();
    let (store, figures, projections) = match &measured.standing {
        Err(why) => {
            reasons.push(format!("the store does not answer: {why}"));
            (
                json!({ "answers": false, "error": why }),
                Value::Null,
                Value::Null,
            )
        }
        Ok(standing) => {
            let stands = &standing.projections;
            reasons.extend(stands.iter().filter_map(|one| complaint(one, measured.at)));
            reasons.extend(figures_complaint(standing.figures.as_ref(), measured.at));
            let shown = stands.iter().map(|stand| show(stand, measured.at));
            (
                json!({ "answers": true, "head": standing.head.get() }),
                show_figures(standing.figures.as_ref(), measured.at),
                shown.collect::<Vec<_>>().into(),
            )
        }
    };
    let is_ready = reasons.is_empty();
    let document = json!({
        "ready": is_ready,
        "reasons": reasons,
        "store": store,
        "account_figures": figures,
        "projections": projections,
        "loops": measured.loops,
    });
    (is_ready, document)
}

fn complaint(stand: &Stand, now: Timestamp) -> Option<String> {
    let checkpoint = &stand.checkpoint;
    if let Some(refused) = &stand.refused {
        return Some(refused.clone());
    }
    if let Some(halt) = &checkpoint.halted {
        let (projection, at) = (checkpoint.projection, halt.position);
        return Some(format!(
            "projection {projection} is halted at event {at}: {}",
            halt.reason
        ));
    }
    let lag = lag(stand.waiting_since, now);
    (lag > MAX_LAG).then(|| {
        format!(
            "projection {} is {} events behind, for {:.0} s",
            checkpoint.projection,
            checkpoint.lag_events,
            lag.as_secs_f64()
        )
    })
}

fn figures_complaint(figures: Option<&Figures>, now: Timestamp) -> Option<String> {
    let figures = figures?;
    if let Some((position, why)) = &figures.followed.halted {
        return Some(format!(
            "account figures are halted at event {position}, and no charge is admitted: {why}"
        ));
    }
    let lag = lag(figures.waiting_since, now);
    (lag > MAX_LAG).then(|| format!("account figures are behind for {:.0} s", lag.as_secs_f64()))
}

fn show_figures(figures: Option<&Figures>, now: Timestamp) -> Value {
    let Some(figures) = figures else {
        return Value::Null;
    };
    let followed = &figures.followed;
    let halted = followed.halted.as_ref();
    json!({
        "position": followed.position.get(),
        "lag_seconds": lag(figures.waiting_since, now).as_secs_f64(),
        "halted": halted.map(|(position, why)| json!({ "position": position.get(), "reason": why })),
        "reservations": followed.reservations,
    })
}

fn show(stand: &Stand, now: Timestamp) -> Value {
    let checkpoint = &stand.checkpoint;
    let halted = checkpoint.halted.as_ref();
    json!({
        "projection": checkpoint.projection.name(),
        "position": checkpoint.position.get(),
        "lag_events": checkpoint.lag_events,
        "lag_seconds": lag(stand.waiting_since, now).as_secs_f64(),
        "halted": halted.map(|halt| json!({ "position": halt.position.get(), "reason": halt.reason })),
        "refused": stand.refused,
        "skips": stand.skips,
    })
}

#[cfg(test)]
mod tests;
