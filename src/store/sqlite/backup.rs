//! A consistent copy of the file, taken while the ledger is used.
//!
//! SQLite's online backup copies every page in one step, under one read snapshot: writers go on, and their pages gather in the WAL until
//! the copy is done. Smaller steps would start over whenever another process commits, which under load is for ever.
//!
//! The copy grows under another name beside its own, is made whole without a WAL, checked, and synced before it gets its name; it never
//! takes the place of a file that is there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use uuid::Uuid;

use super::error::store_error;
use super::{SqliteStore, open};
use crate::sql::Transaction;
use crate::store::{Position, StoreError};

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// How large the copy is.
    pub bytes: u64,
    /// The last event in it.
    pub position: Position,
}

/// Why there is no copy. Nothing is left of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// A file of that name is there.
    #[error("{path} is there already: a backup takes no file's place")]
    Exists {
        /// The file.
        path: String,
    },
    /// The folder or the file cannot be written.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        why: String,
    },
    /// The copy is not what it was copied from.
    #[error("the copy is not whole: {why}")]
    NotWhole {
        /// What is wrong with it.
        why: String,
    },
    /// The ledger could not be read, or the copy not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SqliteStore {
    /// Copies the ledger to `file`, which must not be there, while it is used.
    pub async fn backup(&self, file: PathBuf) -> Result<Copied, BackupError> {
        let store = self.clone();
        let copying = tokio::task::spawn_blocking(move || {
            let ledger = store.shared.identity.ledger;
            let source = open::open_reader(&store.shared.options).map_err(|error| {
                let why = error.to_string();
                StoreError::Unavailable { cause: why }
            })?;
            copy(&source, &file, ledger)
        });
        copying.await.unwrap_or_else(|died| {
            let why = died.to_string();
            Err(StoreError::Unavailable { cause: why }.into())
        })
    }
}

fn copy(source: &Connection, file: &Path, ledger: Uuid) -> Result<Copied, BackupError> {
    if file.symlink_metadata().is_ok() {
        return Err(exists(file));
    }
    let partial = Partial::beside(file);
    let position = copy_pages(source, &partial.path)?;
    check(&partial.path, ledger, position)?;
    let io = |error: std::io::Error| BackupError::Io {
        path: file.display().to_string(),
        why: error.to_string(),
    };
    let bytes = File::open(&partial.path)
        .and_then(|copy| copy.sync_all().and_then(|()| copy.metadata()))
        .map_err(io)?
        .len();
    // A link, unlike a renaming, never takes a file's place.
    fs::hard_link(&partial.path, file).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(file),
        std::io::ErrorKind::Unsupported | std::io::ErrorKind::PermissionDenied => BackupError::Io {
            path: file.display().to_string(),
            why: format!(
                "this file system has no hard links, with which a copy gets its name: {error}"
            ),
        },
        _ => io(error),
    })?;
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io)?;
    Ok(Copied { bytes, position })
}

fn exists(file: &Path) -> BackupError {
    BackupError::Exists {
        path: file.display().to_string(),
    }
}

/// Copies every page as of one moment. Gives the log's head in the copy.
fn copy_pages(source: &Connection, path: &Path) -> Result<Position, BackupError> {
    let opened = Connection::open(path);
    let mut copy = opened.map_err(|error| BackupError::Io {
        path: path.display().to_string(),
        why: error.to_string(),
    })?;
    {
        let backup = Backup::new(source, &mut copy).map_err(store_error)?;
        match backup.step(-1).map_err(store_error)? {
            StepResult::Done => {}
            _ => {
                let cause = "the ledger's file is busy".to_owned();
                return Err(StoreError::Unavailable { cause }.into());
            }
        }
    }
    // The header that was copied says WAL: without one the file is whole by itself.
    copy.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
        .map_err(store_error)?;
    let position = Transaction::on_sqlite(&copy).read_head()?;
    copy.close().map_err(|(_, error)| store_error(error))?;
    Ok(position)
}

/// Opens the copy as a stranger would.
fn check(path: &Path, ledger: Uuid, position: Position) -> Result<(), BackupError> {
    let copy = Connection::open(path).map_err(store_error)?;
    let text = |sql: &str| {
        copy.query_row(sql, [], |row| row.get::<_, String>(0))
            .map_err(store_error)
    };
    let said = text("PRAGMA quick_check(1)")?;
    let found = (
        text("SELECT id FROM ledger")?,
        Transaction::on_sqlite(&copy).read_head()?,
    );
    if said != "ok" {
        return Err(BackupError::NotWhole { why: said });
    }
    if found != (ledger.to_string(), position) {
        let why = format!("ledger {} at position {}", found.0, found.1);
        return Err(BackupError::NotWhole { why });
    }
    Ok(())
}

/// A file that is removed unless it got its name.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn beside(file: &Path) -> Self {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", Uuid::new_v4()));
        Self {
            path: file.with_file_name(name),
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        for ending in ["", "-journal", "-wal", "-shm"] {
            let mut path = self.path.as_os_str().to_owned();
            path.push(ending);
            // Mostly not there; what cannot be removed is named after what it was.
            let _ = fs::remove_file(path);
        }
    }
}
