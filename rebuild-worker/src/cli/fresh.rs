//! Projections, brought to the head before they are read.
//!
//! Nobody has to run a projector to see the truth: what is missing is applied first. Where that is not possible, since an event stands
//! in a projection's way or the store does not answer, the rows are shown as they are, with a warning on stderr and the position that
//! they are true as of.

use recoup::Position;
use recoup_projections::{Checkpoint, Projection, Projections};

use super::answer::complain;
use super::session::Session;

/// One projection, as far as it could be brought.
pub(super) struct Fresh {
    pub(super) projections: Projections,
    /// Every event up to here is in the rows.
    pub(super) as_of: Position,
}

impl Fresh {
    /// Brings every projection to the head, as far as that is possible, to read `projection`.
    pub(super) async fn read(session: &Session, projection: Projection) -> anyhow::Result<Self> {
        let projections = Projections::open(session.store.clone()).await?;
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
            .iter()
            .find(|found| found.projection == projection);
        if let Some(warning) = checkpoint.and_then(warning) {
            complain(&warning);
        }
        let as_of = checkpoint.map_or(Position::START, |checkpoint| checkpoint.position);
        Ok(Self { projections, as_of })
    }
}

fn warning(checkpoint: &Checkpoint) -> Option<String> {
    let halt = checkpoint.halted.as_ref()?;
    Some(format!(
        "warning: {} cannot get past event {}: {}; what follows is as of position {}",
        checkpoint.projection, halt.position, halt.reason, checkpoint.position
    ))
}
