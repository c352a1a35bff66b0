//! Command ids of an import, and which line a stored one belongs to.
//!
//! An id is a UUIDv5 over the file's digest and the line's number, so every run of a file gives the same ids. Some lines append nothing:
//! a duplicate, a rejection. When the file is given again, later lines of the same job are on record by then, and such a line
//! would be decided on a state that it never met: a duplicate failure of a job that was delivered afterwards would contradict it.
//! So a line counts as carried out if a *later* line of its stream is stored; see [`super::plan`].
//!
//! Going from an id back to its line needs an index of the whole file, 16 bytes a line. It is made when a stream is met that holds ids
//! of this form at all.

use recoup::CommandId;
use uuid::{Uuid, Version};

use super::input::FileDigest;

/// The scope of all command ids of imports.
const SCOPE: Uuid = uuid::uuid!("6d1f3a52-8d5b-5c0e-b9a4-30c1f5a7e2d4");

/// The ids of one file.
pub(super) struct Earlier {
    digest: FileDigest,
    lines: u64,
    /// The first half of each line's id, with the line's number; sorted.
    index: Option<Vec<(u64, u64)>>,
}

impl Earlier {
    /// The ids of a file of so many lines.
    pub(super) const fn of(digest: FileDigest, lines: u64) -> Self {
        Self {
            digest,
            lines,
            index: None,
        }
    }

    /// The command id of a line.
    pub(super) fn id(&self, number: u64) -> CommandId {
        CommandId::derived(SCOPE, &[&self.digest, &number.to_le_bytes()])
    }

    /// The line that `id` belongs to, if it is of this file.
    pub(super) fn line_of(&mut self, id: &CommandId) -> Option<u64> {
        let first_half = first_half(id)?;
        if self.index.is_none() {
            let halves =
                (1..=self.lines).filter_map(|line| Some((first_half_of(self, line)?, line)));
            let mut index: Vec<(u64, u64)> = halves.collect();
            index.sort_unstable();
            self.index = Some(index);
        }
        let index = self.index.as_ref()?;
        let from = index.partition_point(|(half, _)| *half < first_half);
        let candidates = index[from..]
            .iter()
            .take_while(|(half, _)| *half == first_half);
        candidates
            .map(|(_, line)| *line)
            .find(|line| self.id(*line) == *id)
    }

    /// The last line of this file among `ids`; 0 if there is none.
    pub(super) fn last_line<'a>(&mut self, ids: impl Iterator<Item = &'a CommandId>) -> u64 {
        ids.filter_map(|id| self.line_of(id)).max().unwrap_or(0)
    }
}

fn first_half_of(earlier: &Earlier, line: u64) -> Option<u64> {
    first_half(&earlier.id(line))
}

/// The first 64 bits; none for an id that is no UUIDv5.
fn first_half(id: &CommandId) -> Option<u64> {
    let uuid = Uuid::try_parse(id.as_str()).ok()?;
    (uuid.get_version() == Some(Version::Sha1)).then(|| uuid.as_u64_pair().0)
}
