//! Which projections there are: their names, what defines their rows, and how each applies a page.
//!
//! A *definition* is the code version and the ledger's zone. Raise [`Projection::version`] whenever the same log would lead
//! to other rows; a build with another definition then refuses to add to rows that it would have made differently.

use std::fmt;

use recoup::Zone;
use recoup::sql::{Migrations, Transaction};
use recoup::store::Migration;

use crate::apply::Changes;
use crate::batch::Batch;
use crate::contradictions::Contradictions;
use crate::daily_usage::DailyUsage;
use crate::dead_letters::DeadLetters;
use crate::due::Due;
use crate::entries::Entries;
use crate::error::ProjectionError;
use crate::jobs::Jobs;

macro_rules! migrations {
    ($database:literal) => {
        [
            migrations!($database, 1, "projections"),
            migrations!($database, 2, "due"),
            migrations!($database, 3, "rebuild"),
            migrations!($database, 4, "skips"),
        ]
    };
    ($database:literal, $number:literal, $name:literal) => {
        Migration {
            number: $number,
            name: $name,
            sql: include_str!(concat!(
                "../migrations/",
                $database,
                "/000",
                $number,
                "_",
                $name,
                ".sql"
            )),
        }
    };
}

/// The component that the migrations are recorded under.
pub(crate) const COMPONENT: &str = "projections";

pub(crate) const MIGRATIONS: Migrations = Migrations {
    sqlite: &migrations!("sqlite"),
    postgres: &migrations!("postgres"),
};

/// One projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    /// The statement: a row for every event that moves money.
    Entries,
    /// Sums by account, day and kind.
    DailyUsage,
    /// Where each job stands.
    Jobs,
    /// Signals that contradicted what had happened.
    Contradictions,
    /// Every live job with its timer.
    Due,
    /// Jobs that wait for a person.
    DeadLetters,
}

impl Projection {
    /// Every projection, in the order in which they are applied.
    pub const ALL: [Self; 6] = [
        Self::Entries,
        Self::DailyUsage,
        Self::Jobs,
        Self::Contradictions,
        Self::Due,
        Self::DeadLetters,
    ];

    /// The stable name; also the name of its table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Entries => "entries",
            Self::DailyUsage => "daily_usage",
            Self::Jobs => "jobs",
            Self::Contradictions => "contradictions",
            Self::Due => "due",
            Self::DeadLetters => "dead_letters",
        }
    }

    /// Looks a projection up by its name.
    pub fn parse(name: &str) -> Result<Self, ProjectionError> {
        Self::ALL
            .into_iter()
            .find(|projection| projection.name() == name)
            .ok_or_else(|| ProjectionError::UnknownProjection {
                name: name.to_owned(),
            })
    }

    /// The version of the code that makes the rows.
    #[must_use]
    pub const fn version(self) -> u32 {
        match self {
            Self::Entries | Self::DailyUsage | Self::Jobs | Self::Contradictions => 1,
            Self::Due | Self::DeadLetters => 1,
        }
    }

    /// What the rows of a ledger with days in `zone` are made by.
    #[must_use]
    pub fn definition(self, zone: Zone) -> String {
        format!("version {}, zone {zone}", self.version())
    }

    /// Begins to apply `batch` inside a write transaction.
    pub(crate) fn begin<'a>(
        self,
        tx: &'a Transaction<'_>,
        batch: &'a Batch,
    ) -> Box<dyn Changes<'a> + 'a> {
        match self {
            Self::Entries => Box::new(Entries::begin(tx)),
            Self::DailyUsage => Box::new(DailyUsage::begin(tx)),
            Self::Jobs => Box::new(Jobs::begin(tx)),
            Self::Contradictions => Box::new(Contradictions::begin(tx, batch)),
            Self::Due => Box::new(Due::begin(tx)),
            Self::DeadLetters => Box::new(DeadLetters::begin(tx, batch)),
        }
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for projection in Projection::ALL {
            assert_eq!(Projection::parse(projection.name()).ok(), Some(projection));
        }
        assert!(Projection::parse("entry").is_err());
    }
}
