//! Projections, brought to the head before they are read.
//!
//! Nobody has to run a projector to see the truth: what is missing is applied first. Where that is not possible, since an event stands
//! in a projection's way or the store does not answer, the rows are shown as they are, with a warning on stderr and the position that
//! they are true as of.

use recoup_projections::{Checkpoint, Projection, Projections};
use serde_json::{Value, json};

use super::answer::complain;
use super::session::Session;
use super::table::counted;

/// One projection, as far as it could be brought.
pub(super) struct Fresh {
    pub(super) projections: Projections,
    /// Every event up to here is in the rows; none for a checkpoint that is not there.
    checkpoint: Option<Checkpoint>,
}

impl Fresh {
    /// Brings every projection to the head, as far as that is possible, to read `projection`.
    pub(super) async fn read(session: &Session, projection: Projection) -> anyhow::Result<Self> {
        let projections = Projections::open(session.database.clone()).await?;
        let checkpoints = match projections.catch_up().await {
            Ok(progress) => progress.checkpoints,
            Err(error) if error.is_transient() => {
                complain(&format!(
                    "warning: what follows may be behind the log: {error}"
                ));
                projections.checkpoints().await?
            }
            Err(error) => return Err(error.into()),
        };
        let checkpoint = checkpoints
            .into_iter()
            .find(|found| found.projection == projection);
        if let Some(warning) = checkpoint.as_ref().and_then(warning) {
            complain(&warning);
        }
        Ok(Self {
            projections,
            checkpoint,
        })
    }

    /// `document`, with what its rows are true as of.
    pub(super) fn stamp(&self, mut document: Value) -> Value {
        let at = self.checkpoint.as_ref();
        let halted = at.and_then(|at| at.halted.as_ref());
        document["as_of_position"] = at.map_or(0, |at| at.position.get()).into();
        document["lag_events"] = at.map_or(0, |at| at.lag_events).into();
        document["halted"] = halted
            .map(|halt| json!({ "position": halt.position.get(), "reason": halt.reason }))
            .unwrap_or_default();
        document
    }

    /// That there are no rows, and up to where that is known if it is not the head.
    pub(super) fn nothing(&self, text: &str) -> String {
        match &self.checkpoint {
            Some(at) if at.lag_events > 0 => format!(
                "{text} up to position {}; {} in the log after it, not applied",
                at.position,
                counted(at.lag_events, "event")
            ),
            _ => text.to_owned(),
        }
    }
}

fn warning(checkpoint: &Checkpoint) -> Option<String> {
    let halt = checkpoint.halted.as_ref()?;
    Some(format!(
        "warning: {} cannot get past event {}: {}; what follows is as of position {}",
        checkpoint.projection, halt.position, halt.reason, checkpoint.position
    ))
}
