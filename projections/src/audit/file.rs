//! The file itself: its pages and indexes agree, and its tables and indexes are as they were made.
//!
//! The guard of every append is an index. One that lacks an entry lets a job be charged twice, and no row would show it before.

use recoup::store::StoreError;
use recoup::store::sqlite::{ledger_schema_faults, schema_faults, store_error};
use rusqlite::Connection;

use super::report::{Area, Report};
use crate::catalog::{COMPONENT, MIGRATIONS};

/// How many faults of pages SQLite is asked for.
const MAX_PAGE_FAULTS: u32 = 100;

pub(super) fn check(connection: &Connection, report: &mut Report) -> Result<(), StoreError> {
    let made = ledger_schema_faults(connection)?;
    let made_since = schema_faults(connection, COMPONENT, MIGRATIONS)?;
    for fault in made.into_iter().chain(made_since) {
        report.wrong(Area::File, "schema", fault);
    }
    let mut statement = connection
        .prepare(&format!("PRAGMA integrity_check({MAX_PAGE_FAULTS})"))
        .map_err(store_error)?;
    let mut rows = statement.query([]).map_err(store_error)?;
    while let Some(row) = rows.next().map_err(store_error)? {
        report.count(Area::File, 1);
        let said: String = row.get(0).map_err(store_error)?;
        if said != "ok" {
            report.wrong(Area::File, "pages", said);
        }
    }
    Ok(())
}
