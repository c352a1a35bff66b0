//! Where each projection is compared: at its checkpoint, if that is one of this log and this build's definition.
//!
//! A checkpoint that is neither is a finding itself, and its table is not compared: the audit would hold rows against something
//! that they were never meant to be. An event that a person had skipped is a finding too, for as long as the rows lack it.

use recoup::sql::Transaction;
use recoup::{Position, Reason, Zone};

use super::report::{Area, Report};
use super::rows::Until;
use crate::catalog::Projection;
use crate::checkpoint;
use crate::error::ProjectionError;
use crate::ways_out::{self, Skip};

pub(super) struct Marks {
    marks: Vec<(Projection, Position)>,
    /// Skips that are findings already.
    skips: Vec<Skip>,
}

impl Marks {
    pub(super) fn read(
        tx: &Transaction<'_>,
        zone: Zone,
        report: &mut Report,
    ) -> Result<Self, ProjectionError> {
        let (mut marks, mut skips) = (Vec::new(), Vec::new());
        // A ledger has none of our tables before projections were first opened, and not all of them before an upgrade.
        if !tx.has_table("checkpoints")? {
            return Ok(Self { marks, skips });
        }
        let has_skips = tx.has_table("projection_skips")?;
        for projection in Projection::ALL {
            report.count(Area::Checkpoints, 1);
            let Some(checkpoint) = checkpoint::read(tx, projection)? else {
                let what = "has no checkpoint: its rows are not compared".to_owned();
                report.wrong(Area::Checkpoints, projection, what);
                continue;
            };
            if let Some(halt) = &checkpoint.halted {
                let what = format!("halted before event {}: {}", halt.position, halt.reason);
                report.wrong(Area::Checkpoints, projection, what);
            }
            if has_skips {
                for skip in ways_out::in_force(tx, projection)? {
                    report.wrong(Area::Checkpoints, projection, name_skip(&skip));
                    skips.push(skip);
                }
            }
            let checked = checkpoint
                .check_definition(zone)
                .and_then(|()| checkpoint.check_event(tx));
            match checked {
                Ok(()) => marks.push((projection, checkpoint.position)),
                Err(
                    wrong @ (ProjectionError::OtherDefinition { .. }
                    | ProjectionError::OtherLog { .. }),
                ) => report.wrong(Area::Checkpoints, projection, wrong.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { marks, skips })
    }

    /// Where `projection` is compared.
    pub(super) fn of(&self, projection: Projection) -> Until {
        let mark = self.marks.iter().find(|(marked, _)| *marked == projection);
        mark.map(|(_, position)| *position)
    }

    /// The event at `position` cannot be read: a finding for every projection that claims to have passed it.
    pub(super) fn stop_at(&mut self, position: Position, report: &mut Report) {
        self.marks.retain(|(projection, until)| {
            let is_before = *until < position;
            let is_skipped = self.skips.iter().any(|skip| {
                skip.projection == *projection
                    && (skip.position..=skip.last_position).contains(&position)
            });
            if !is_before && !is_skipped {
                let what = format!(
                    "claims to have passed event {position}, which this build cannot read: not compared from there"
                );
                report.wrong(Area::Checkpoints, projection, what);
            }
            is_before
        });
    }
}

/// A skip, as a finding: which event, by whom, why, when, and what stood in the way.
fn name_skip(skip: &Skip) -> String {
    let decision = &skip.decision;
    let what = if skip.position == skip.last_position {
        format!("event {} was", skip.position)
    } else {
        format!(
            "the append of events {} to {} was",
            skip.position, skip.last_position
        )
    };
    let id = skip
        .event_id
        .map_or_else(String::new, |id| format!(" ({id})"));
    let reason = decision.reason.as_ref().map_or("none", Reason::as_str);
    format!(
        "{what} skipped in {} by {}: {reason}; at {}{id}, where it was halted: {}; its rows are not the log's until it is reset",
        skip.projection, decision.by, decision.at, skip.halted
    )
}
