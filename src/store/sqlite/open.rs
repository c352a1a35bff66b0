//! Opening and creating the file.
//!
//! An existing file is looked at before anything is changed: another program's, or one that was cut short, is refused and left
//! as it was. Creation happens in one transaction: a file is either a whole ledger or none.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::error::store_error;
use super::{Options, SqliteStore, patience, schema};
use crate::sql::Transaction;
use crate::store::{Identity, Migration, OpenError};

/// `PRAGMA application_id` of a ledger: "rcup" in ASCII.
const APPLICATION_ID: i32 = 0x7263_7570;

const MIGRATIONS: &[Migration] = &[
    Migration {
        number: 1,
        name: "log",
        sql: include_str!("migrations/0001_log.sql"),
    },
    Migration {
        number: 2,
        name: "backfill",
        sql: include_str!("migrations/0002_backfill.sql"),
    },
];

/// How much of the file a writing connection keeps in memory, in KiB.
const CACHE_KIB: i64 = 65_536;

/// After how many pages the WAL is copied back into the file.
const CHECKPOINT_PAGES: i64 = 4_000;

/// Opens the writing connection, creating the ledger if there is no file.
pub(super) fn open(options: &Options) -> Result<(Connection, Identity), OpenError> {
    let path = &options.path;
    create_folder(path)?;
    check_entry(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let connection = opened.map_err(|error| io(path, "cannot be opened", &error))?;
    patience::install(&connection, options.busy_timeout).map_err(store_error)?;
    check_file(&connection, path)?;
    let journal = prepare(&connection, options).map_err(|error| explain(path, error))?;
    if journal != "wal" {
        let why = format!(
            "{}: this file system allows no WAL (it answers {journal:?}); a ledger needs a local disk",
            path.display()
        );
        return Err(OpenError::Io { why });
    }
    let identity = create_or_check(&connection, options)?;
    Ok((connection, identity))
}

/// Opens a connection that only reads.
pub(super) fn open_reader(options: &Options) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(&options.path, flags);
    let connection = opened.map_err(|error| io(&options.path, "cannot be opened", &error))?;
    patience::install(&connection, options.busy_timeout).map_err(store_error)?;
    // Not opened read-only: a reader must be able to make the WAL's index after a crash. It cannot write all the same.
    connection
        .pragma_update(None, "query_only", true)
        .map_err(store_error)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn io(path: &Path, what: &str, error: &dyn std::error::Error) -> OpenError {
    OpenError::Io {
        why: format!("{} {what}: {error}", path.display()),
    }
}

fn explain(path: &Path, error: rusqlite::Error) -> OpenError {
    use rusqlite::ffi::ErrorCode::{CannotOpen, DatabaseCorrupt, NotADatabase};
    let (path_text, why) = (path.display().to_string(), error.to_string());
    match error.sqlite_error_code() {
        Some(NotADatabase) => OpenError::Foreign {
            path: path_text,
            why,
        },
        Some(DatabaseCorrupt) => OpenError::Damaged {
            path: path_text,
            why,
        },
        Some(CannotOpen) => io(path, "cannot be opened", &error),
        _ => store_error(error).into(),
    }
}

fn create_folder(path: &Path) -> Result<(), OpenError> {
    let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    else {
        return Ok(());
    };
    fs::create_dir_all(folder).map_err(|error| {
        io(
            folder,
            "cannot be made, and the ledger was to be in it",
            &error,
        )
    })
}

/// Refuses what is surely no whole ledger by the folder's entries alone.
///
/// The file itself is not opened: closing any descriptor of it would drop the locks that this process holds through another
/// connection (<https://www.sqlite.org/howtocorrupt.html>, section 2.2), and with them the WAL that it writes to.
fn check_entry(path: &Path) -> Result<(), OpenError> {
    // Looked at first: another process may be creating the ledger, and makes its WAL last.
    let has_wal = wal_bytes(path) > 0;
    let Ok(entry) = fs::metadata(path) else {
        return if has_wal { Err(orphaned(path)) } else { Ok(()) };
    };
    if !entry.is_file() {
        let why = "it is no regular file".to_owned();
        return Err(OpenError::Foreign {
            path: path.display().to_string(),
            why,
        });
    }
    // The smallest page is 512 bytes; SQLite itself takes a file of one byte for an empty one.
    if (1..512).contains(&entry.len()) {
        let why = "it has no SQLite header".to_owned();
        return Err(OpenError::Foreign {
            path: path.display().to_string(),
            why,
        });
    }
    if entry.len() == 0 && has_wal {
        return Err(orphaned(path));
    }
    Ok(())
}

/// SQLite would throw the WAL away, and begin anew.
fn orphaned(path: &Path) -> OpenError {
    let why = "its WAL is there, and the file itself is gone".to_owned();
    OpenError::Damaged {
        path: path.display().to_string(),
        why,
    }
}

fn wal_bytes(path: &Path) -> u64 {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    fs::metadata(wal).map_or(0, |wal| wal.len())
}

/// Refuses another program's file and one that was cut short, through SQLite's own descriptor, before anything is changed.
fn check_file(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    // In one transaction: another process may be creating the ledger between two looks.
    let exec = |sql: &str| {
        connection
            .execute_batch(sql)
            .map_err(|error| explain(path, error))
    };
    exec("BEGIN")?;
    let checked = check_header(connection, path);
    exec("ROLLBACK")?;
    checked
}

fn check_header(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let number = |name: &str| {
        let value = connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        value.map_err(|error| explain(path, error))
    };
    // SQLite refuses a file that lacks whole pages, or has no header of its own, at the first read.
    let owner = number("application_id")?;
    let is_ours = owner == i64::from(APPLICATION_ID);
    if !is_ours && (owner != 0 || has_any_table(connection)?) {
        let why = "it is another program's SQLite file".to_owned();
        return Err(OpenError::Foreign {
            path: path.display().to_string(),
            why,
        });
    }
    let expected = number("page_count")?.saturating_mul(number("page_size")?);
    // While a WAL holds pages, the file may lack the last ones. They are in the file before the WAL is gone.
    let has_wal = wal_bytes(path) > 0;
    let length = fs::metadata(path).map_or(0, |entry| entry.len());
    if !has_wal && length < expected.unsigned_abs() {
        let why = format!("it has {length} bytes of {expected}");
        return Err(OpenError::Damaged {
            path: path.display().to_string(),
            why,
        });
    }
    Ok(())
}

/// Sets the connection up. Gives the journal mode, which a file system may not allow to change.
fn prepare(connection: &Connection, options: &Options) -> Result<String, rusqlite::Error> {
    // Switching a new file to WAL does not wait for a lock by itself.
    let deadline = Instant::now() + options.busy_timeout;
    let journal = loop {
        match connection
            .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))
        {
            Ok(journal) => break journal,
            Err(error) if is_busy(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error),
        }
    };
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    if let Some(pages) = options.max_pages {
        connection
            .pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))?;
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(journal)
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ffi::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(
        error.sqlite_error_code(),
        Some(DatabaseBusy | DatabaseLocked)
    )
}

/// The ledger's identity. An existing ledger of this schema is only read: opening it does not wait for a writer.
fn create_or_check(connection: &Connection, options: &Options) -> Result<Identity, OpenError> {
    let tx = Transaction::on_sqlite(connection);
    if tx.has_table("ledger")? && tx.is_migrated("ledger", MIGRATIONS)? {
        check_guard(connection, &options.path)?;
        return check(&tx, options);
    }
    let exec = |sql: &str| {
        connection
            .execute_batch(sql)
            .map_err(|error| explain(&options.path, error))
    };
    exec("BEGIN IMMEDIATE")?;
    match create_or_migrate(connection, options).and_then(|()| check(&tx, options)) {
        Ok(identity) => {
            exec("COMMIT")?;
            // From here on the file alone says that it is a ledger: without its WAL it is not taken for an empty file.
            copy_back(connection);
            Ok(identity)
        }
        Err(error) => {
            // The first error is the one to tell; a rollback that fails too is done by closing the connection.
            let _ = connection.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

/// Refuses a ledger without the index that lets one of two appends at one revision in.
fn check_guard(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    match schema_faults(connection)?.first() {
        None => Ok(()),
        Some(why) => Err(OpenError::Damaged {
            path: path.display().to_string(),
            why: why.clone(),
        }),
    }
}

/// What of the ledger's own tables and indexes is not in the file as it was made.
pub fn schema_faults(connection: &Connection) -> Result<Vec<String>, crate::store::StoreError> {
    schema::schema_faults(connection, "ledger", MIGRATIONS)
}

/// Copies what can be copied from the WAL into the file, without waiting for anyone. It loses nothing if it fails: the WAL keeps it.
pub(super) fn copy_back(connection: &Connection) {
    if let Err(error) = connection.execute_batch("PRAGMA wal_checkpoint(PASSIVE)") {
        tracing::debug!(%error, "the WAL was not copied back");
    }
}

fn create_or_migrate(connection: &Connection, options: &Options) -> Result<(), OpenError> {
    let tx = Transaction::on_sqlite(connection);
    if tx.has_table("ledger")? {
        return tx.migrate("ledger", MIGRATIONS);
    }
    connection
        .pragma_update(None, "application_id", APPLICATION_ID)
        .map_err(store_error)?;
    tx.migrate("ledger", MIGRATIONS)?;
    tx.create_identity((options.zone, options.scale), options.clock.now())?;
    Ok(())
}

fn check(tx: &Transaction<'_>, options: &Options) -> Result<Identity, OpenError> {
    let path = options.path.display().to_string();
    tx.check_role(&path, options.is_beside_a_log)?;
    tx.read_identity(&path, (options.zone, options.scale))
}

fn has_any_table(connection: &Connection) -> Result<bool, OpenError> {
    let sql = "SELECT 1 FROM sqlite_schema LIMIT 1";
    let found = connection
        .query_row(sql, [], |_| Ok(()))
        .optional()
        .map_err(store_error)?;
    Ok(found.is_some())
}

impl SqliteStore {
    /// The `application_id` that marks a ledger's file.
    pub const APPLICATION_ID: i32 = APPLICATION_ID;
}
