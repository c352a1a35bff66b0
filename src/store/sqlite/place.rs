//! Whether the file that is written to is still the one at its path.
//!
//! A file that was removed or replaced can be written to by who has it open, and nobody will ever find what is written. Looked at
//! before every commit: one `stat`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::StoreError;

#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Place {
    /// The file that is at `path` now, just opened.
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let file = look(path).ok_or_else(|| gone(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Refuses to go on with a file that is at its path no more.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if look(&self.path) == Some(self.file) {
            Ok(())
        } else {
            Err(gone(&self.path))
        }
    }
}

fn look(path: &Path) -> Option<(u64, u64)> {
    let entry = fs::metadata(path).ok()?;
    Some((entry.dev(), entry.ino()))
}

fn gone(path: &Path) -> StoreError {
    StoreError::Damaged {
        why: format!(
            "{} was removed or replaced while it was open",
            path.display()
        ),
    }
}
