//! Where each projection is compared: at its checkpoint, if that is one of this log and this build's definition.
//!
//! A checkpoint that is neither is a finding itself, and its table is not compared: the audit would hold rows against something
//! that they were never meant to be.

use recoup::{Position, Zone};
use rusqlite::{Connection, OptionalExtension};

use super::report::{Area, Report};
use super::rows::Until;
use crate::catalog::Projection;
use crate::checkpoint;
use crate::error::{ProjectionError, table_error};

pub(super) struct Marks {
    marks: Vec<(Projection, Position)>,
}

impl Marks {
    pub(super) fn read(
        connection: &Connection,
        zone: Zone,
        report: &mut Report,
    ) -> Result<Self, ProjectionError> {
        let mut marks = Vec::new();
        if !has_projections(connection)? {
            return Ok(Self { marks });
        }
        for projection in Projection::ALL {
            report.count(Area::Checkpoints, 1);
            let Some(checkpoint) = checkpoint::read(connection, projection)? else {
                let what = "has no checkpoint: its rows are not compared".to_owned();
                report.wrong(Area::Checkpoints, projection, what);
                continue;
            };
            if let Some(halt) = &checkpoint.halted {
                let what = format!("halted before event {}: {}", halt.position, halt.reason);
                report.wrong(Area::Checkpoints, projection, what);
            }
            let checked = checkpoint
                .check_definition(zone)
                .and_then(|()| checkpoint.check_event(connection));
            match checked {
                Ok(()) => marks.push((projection, checkpoint.position)),
                Err(
                    wrong @ (ProjectionError::OtherDefinition { .. }
                    | ProjectionError::OtherLog { .. }),
                ) => report.wrong(Area::Checkpoints, projection, wrong.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { marks })
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
            if !is_before {
                let what = format!(
                    "claims to have passed event {position}, which this build cannot read: not compared from there"
                );
                report.wrong(Area::Checkpoints, projection, what);
            }
            is_before
        });
    }
}

/// Whether projections were ever opened in this ledger.
fn has_projections(connection: &Connection) -> Result<bool, ProjectionError> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'checkpoints'";
    let found = connection
        .query_row(sql, [], |_| Ok(()))
        .optional()
        .map_err(table_error)?;
    Ok(found.is_some())
}
