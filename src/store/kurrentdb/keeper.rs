//! Which database keeps the account figures: the last event of the stream `<prefix>figures`, which no reader of the log is given.
//!
//! Two databases beside one log would each admit charges without what the other has reserved. So the log names the one that may, by the id that it was made
//! with; the first one beside a log names itself, with "no stream" as the expected revision, and after that a person decides.

use kurrentdb::{EventData, StreamState};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Log;
use super::append::send_until_known;
use super::read::stream_on_server;
use crate::ids::Reason;
use crate::sql::Database;
use crate::store::{EventStore, OpenError, Revision, StoreError};

const TYPE: &str = "recoup.ledger.figures_kept";

/// What a process is told whose database is not the one.
pub(super) const ELSEWHERE: &str = "the log names another database as the one that keeps its account figures; every process of a ledger has the same one beside it (--db)";

/// One event of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The id of the database, as it was made.
    database: Uuid,
    /// For people: where it was.
    place: String,
    /// Why it took over; none for the first.
    reason: Option<String>,
    /// Who decided so; none for the first.
    by: Option<String>,
}

impl Kept {
    fn by(database: &Database, decision: Option<(&Reason, &str)>) -> Self {
        Self {
            database: database.identity().ledger,
            place: database.place_name(),
            reason: decision.map(|(reason, _)| reason.as_str().to_owned()),
            by: decision.map(|(_, by)| by.to_owned()),
        }
    }
}

impl Log {
    /// The id of the database that keeps the figures; none before the first.
    pub(super) async fn keeper(&self) -> Result<Option<Uuid>, StoreError> {
        let last = self.read_keeper().await?;
        Ok(last.map(|(_, kept)| kept.database))
    }

    /// Refuses a database that does not keep the figures. The first one that asks does from then on.
    pub(super) async fn bind_keeper(&self, database: &Database) -> Result<(), OpenError> {
        let own = Kept::by(database, None);
        let keeper = match self.read_keeper().await? {
            Some((_, keeper)) => keeper,
            None => self.name_keeper(None, own.clone()).await?,
        };
        if keeper.database == own.database {
            return Ok(());
        }
        let why = format!("{ELSEWHERE}: it named {}", keeper.place);
        Err(OpenError::Foreign {
            path: own.place,
            why,
        })
    }

    /// Makes a database the one that keeps the figures. False if it is already.
    pub(super) async fn move_keeper(
        &self,
        database: &Database,
        reason: &Reason,
        by: &str,
    ) -> Result<bool, OpenError> {
        let own = Kept::by(database, Some((reason, by)));
        let before = self.read_keeper().await?;
        if before
            .as_ref()
            .is_some_and(|(_, kept)| kept.database == own.database)
        {
            return Ok(false);
        }
        let at = before.map(|(revision, _)| revision);
        let keeper = self.name_keeper(at, own.clone()).await?;
        if keeper.database == own.database {
            return Ok(true);
        }
        let why = format!("another process named {} at the same time", keeper.place);
        Err(OpenError::Foreign {
            path: own.place,
            why,
        })
    }

    /// Names a database behind the event at `after`; gives the one that is named in the end, if by another process at the same time.
    async fn name_keeper(&self, after: Option<Revision>, own: Kept) -> Result<Kept, StoreError> {
        let stream = self.keepers();
        let expected = after.map_or(StreamState::NoStream, |revision| {
            StreamState::StreamRevision(revision.get())
        });
        let event = EventData::json(TYPE, &own).expect("plain data always serializes");
        let event = event.id(Uuid::new_v4());
        let find = || async {
            let last = self.read_keeper().await?;
            let behind = last.filter(|(revision, _)| Some(*revision) > after);
            Ok(behind.map(|(_, keeper)| keeper))
        };
        send_until_known(&self.shared.link, &stream, expected, event, find).await
    }

    fn keepers(&self) -> String {
        format!("{}figures", self.shared.options.prefix)
    }

    async fn read_keeper(&self) -> Result<Option<(Revision, Kept)>, StoreError> {
        let stream = self.keepers();
        let events = stream_on_server(&self.shared.link, &stream, Revision::FIRST).await?;
        let Some(last) = events.last() else {
            return Ok(None);
        };
        let damaged = |why: String| StoreError::Damaged {
            why: format!("{stream}: {why}"),
        };
        if last.event_type != TYPE {
            return Err(damaged(format!("an event of the type {}", last.event_type)));
        }
        let kept = serde_json::from_slice(&last.data);
        let kept: Kept = kept.map_err(|error| damaged(error.to_string()))?;
        Ok(Some((Revision::new(last.revision), kept)))
    }
}
