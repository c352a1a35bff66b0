//! The tables that a ledger has gone through, and what it was created with.
//!
//! Which migrations have run is stored in the ledger, and one transaction runs the rest.

use std::str::FromStr;

use uuid::Uuid;

use super::{Dialect, Transaction};
use crate::clock::{Timestamp, Zone};
use crate::credits::Scale;
use crate::store::{Identity, Migration, OpenError, StoreError};

impl Transaction<'_> {
    /// The newest migration of `component` that has run; 0 for none.
    pub(crate) fn newest_migration(&self, component: &str) -> Result<u32, StoreError> {
        if !self.has_table("migrations")? {
            return Ok(0);
        }
        let sql = "SELECT max(number) FROM migrations WHERE component = ?1";
        let newest = self.row(sql, crate::values![component], |row| {
            row.get::<Option<u32>>(0)
        })?;
        Ok(newest.flatten().unwrap_or(0))
    }

    /// Whether no migration of `component` is missing; an error if the ledger is newer than this build. Only reads.
    pub(crate) fn is_migrated(
        &self,
        component: &str,
        migrations: &[Migration],
    ) -> Result<bool, OpenError> {
        let known = migrations.last().map_or(0, |last| last.number);
        let found = self.newest_migration(component)?;
        if found > known {
            return Err(OpenError::NewerSchema {
                component: component.to_owned(),
                found,
                known,
            });
        }
        Ok(found == known)
    }

    /// Runs what is missing of `component`. For a writing transaction.
    pub(crate) fn migrate(
        &self,
        component: &str,
        migrations: &[Migration],
    ) -> Result<(), OpenError> {
        if self.is_migrated(component, migrations)? {
            return Ok(());
        }
        self.execute_batch(match self.dialect() {
            Dialect::Sqlite => {
                "CREATE TABLE IF NOT EXISTS migrations (
                component TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL,
                PRIMARY KEY (component, number)) STRICT, WITHOUT ROWID"
            }
            Dialect::Postgres => {
                "CREATE TABLE IF NOT EXISTS migrations (
                component TEXT COLLATE \"C\" NOT NULL, number BIGINT NOT NULL, name TEXT COLLATE \"C\" NOT NULL,
                PRIMARY KEY (component, number))"
            }
        })?;
        let found = self.newest_migration(component)?;
        for migration in migrations.iter().filter(|one| one.number > found) {
            self.execute_batch(migration.sql)?;
            let sql = "INSERT INTO migrations (component, number, name) VALUES (?1, ?2, ?3)";
            let values = crate::values![component, migration.number, migration.name];
            self.execute(sql, values)?;
        }
        Ok(())
    }

    /// Writes down what the ledger is created with: days in UTC and no decimals, unless something else was asked for.
    pub(crate) fn create_identity(
        &self,
        (zone, scale): (Option<Zone>, Option<Scale>),
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let sql =
            "INSERT INTO ledger (one, id, zone, scale, created_at) VALUES (1, ?1, ?2, ?3, ?4)";
        let values = crate::values![
            Uuid::new_v4().to_string(),
            zone.unwrap_or(Zone::UTC).name(),
            u32::from(scale.map_or(0, Scale::get)),
            now.as_micros(),
        ];
        self.execute(sql, values).map(|_| ())
    }

    /// An error if this database has the figures of a log in KurrentDB, and is opened as if it had a log of its own. `path` says where it is.
    pub(crate) fn check_role(&self, path: &str, is_beside_a_log: bool) -> Result<(), OpenError> {
        if is_beside_a_log || !self.has_table("followed_log")? {
            return Ok(());
        }
        Err(OpenError::Foreign {
            path: path.to_owned(),
            why: "it has the account figures of a log in KurrentDB, and is to be named beside that"
                .to_owned(),
        })
    }

    /// What the ledger was created with; an error if it is not what is asked for. `path` says where the ledger is.
    pub(crate) fn read_identity(
        &self,
        path: &str,
        (zone, scale): (Option<Zone>, Option<Scale>),
    ) -> Result<Identity, OpenError> {
        let damaged = |why: String| OpenError::Damaged {
            path: path.to_owned(),
            why,
        };
        let row = self.row("SELECT id, zone, scale FROM ledger", &[], |row| {
            Ok((
                row.get::<String>(0)?,
                row.get::<String>(1)?,
                row.get::<u32>(2)?,
            ))
        })?;
        let (id, named, decimals) =
            row.ok_or_else(|| damaged("it does not say what it was created with".to_owned()))?;
        let decimals =
            u8::try_from(decimals).map_err(|error| damaged(format!("scale: {error}")))?;
        let identity = Identity {
            ledger: Uuid::from_str(&id).map_err(|error| damaged(format!("ledger id: {error}")))?,
            zone: Zone::parse(&named).map_err(|error| damaged(error.to_string()))?,
            scale: Scale::new(decimals).map_err(|error| damaged(error.to_string()))?,
        };
        identity.check_asked(zone, scale)?;
        Ok(identity)
    }
}
