//! Exit codes: what a script hears of a run, and which errors lead to which.
//!
//! The codes are a contract and never change: 0 done, 1 failed, 2 wrong usage, 3 rejected by a rule or only noted, 4 drift or
//! violations found, 5 outcome unknown. An error is mapped here, once, by its type and never by its text.

use std::process::ExitCode;

use recoup::ledger::{ChargeError, LedgerError};
use recoup::store::sqlite::BackupError;
use recoup::store::{BackfillError, OpenError, StoreError};
use recoup_projections::ProjectionError;

use crate::rebuild::RebuildError;

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It holds; also when it had been done before.
    Done,
    /// It could not be done.
    Failed,
    /// It was asked for in a wrong way.
    Usage,
    /// A rule said no, or the signal was only noted.
    Refused,
    /// The books do not agree; also when they were repaired.
    Violations,
    /// It may or may not have happened: repeat it under the same command id.
    Unknown,
}

impl Exit {
    /// The code of the process.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Violations => 4,
            Self::Unknown => 5,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Wrong usage that the parser of the arguments cannot see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Usage(
    /// What is wrong, for people.
    pub String,
);

/// What an error means to a script: the exit code, and a stable name where there is one.
#[must_use]
pub fn classify(error: &anyhow::Error) -> (Exit, Option<&'static str>) {
    error
        .chain()
        .find_map(classify_one)
        .unwrap_or((Exit::Failed, None))
}

fn classify_one(cause: &(dyn std::error::Error + 'static)) -> Option<(Exit, Option<&'static str>)> {
    if cause.is::<Usage>() || cause.is::<ChargeError>() {
        return Some((Exit::Usage, Some("usage")));
    }
    if let Some(error) = cause.downcast_ref::<OpenError>() {
        return Some(match error {
            OpenError::Differs { what, .. } => {
                let code = match *what {
                    "zone" => "zone_differs",
                    "prefix" => "prefix_differs",
                    _ => "scale_differs",
                };
                (Exit::Usage, Some(code))
            }
            other => (Exit::Failed, Some(open_code(other))),
        });
    }
    if let Some(error) = cause.downcast_ref::<LedgerError>() {
        let exit = match error {
            LedgerError::OutcomeUnknown { .. } => Exit::Unknown,
            _ => Exit::Failed,
        };
        return Some((exit, Some(ledger_code(error))));
    }
    if let Some(error) = cause.downcast_ref::<ProjectionError>() {
        return match error {
            ProjectionError::Open(error) => classify_one(error),
            ProjectionError::Store(error) => classify_one(error),
            ProjectionError::OtherDefinition { .. } => {
                Some((Exit::Failed, Some("other_definition")))
            }
            ProjectionError::OtherLog { .. } => Some((Exit::Failed, Some("other_log"))),
            ProjectionError::UnknownProjection { .. } => Some((Exit::Usage, Some("usage"))),
        };
    }
    // Errors that only pass another one on have no source to find it by.
    if let Some(error) = cause.downcast_ref::<RebuildError>() {
        return match error {
            RebuildError::Projection(error) => classify_one(error),
            RebuildError::Store(error) => classify_one(error),
            RebuildError::Shadow(_) | RebuildError::ShadowFigures(_) => {
                Some((Exit::Failed, Some("shadow")))
            }
            RebuildError::SetBack { .. } => Some((Exit::Failed, Some("set_back"))),
            RebuildError::Overflow { .. } => Some((Exit::Failed, Some("overflow"))),
            RebuildError::TooBusy => Some((Exit::Failed, Some("too_busy"))),
            RebuildError::Cancelled => Some((Exit::Failed, Some("cancelled"))),
        };
    }
    if let Some(error) = cause.downcast_ref::<BackupError>() {
        return match error {
            BackupError::Store(error) => classify_one(error),
            BackupError::Exists { .. } => Some((Exit::Failed, Some("exists"))),
            BackupError::Io { .. } => Some((Exit::Failed, Some("io"))),
            BackupError::NotWhole { .. } => Some((Exit::Failed, Some("not_whole"))),
        };
    }
    if let Some(error) = cause.downcast_ref::<BackfillError>() {
        return match error {
            BackfillError::Store(error) => classify_one(error),
            BackfillError::NotEmpty => Some((Exit::Failed, Some("not_empty"))),
            BackfillError::Other { .. } => Some((Exit::Failed, Some("backfilling"))),
            BackfillError::NoPast => Some((Exit::Failed, Some("no_past"))),
        };
    }
    let store = cause.downcast_ref::<StoreError>()?;
    let exit = match store {
        StoreError::Unconfirmed { .. } => Exit::Unknown,
        _ => Exit::Failed,
    };
    Some((exit, Some(store_code(store))))
}

const fn open_code(error: &OpenError) -> &'static str {
    match error {
        OpenError::Foreign { .. } => "foreign",
        OpenError::Damaged { .. } => "damaged",
        OpenError::NewerSchema { .. } => "newer_schema",
        OpenError::Differs { .. } => "differs",
        OpenError::Io { .. } => "io",
        OpenError::Store(error) => store_code(error),
    }
}

/// The stable name of a ledger's error.
#[must_use]
pub const fn ledger_code(error: &LedgerError) -> &'static str {
    match error {
        LedgerError::Store(error) => store_code(error),
        LedgerError::OutcomeUnknown { .. } => "outcome_unknown",
        LedgerError::StreamTooNew { .. } => "stream_too_new",
        LedgerError::Corrupt { .. } => "corrupt",
    }
}

const fn store_code(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable { .. } => "unavailable",
        StoreError::Unconfirmed { .. } => "outcome_unknown",
        StoreError::Backfilling { .. } => "backfilling",
        StoreError::Full => "disk_full",
        StoreError::ReadOnly { .. } => "read_only",
        StoreError::Damaged { .. } => "damaged",
        StoreError::Corrupt { .. } => "corrupt",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn errors_are_told_apart_through_their_context() {
        let unavailable = || StoreError::Unavailable {
            cause: "busy".to_owned(),
        };
        let differs = OpenError::Differs {
            what: "zone",
            stored: "UTC".to_owned(),
            asked: "Asia/Seoul".to_owned(),
        };
        let unknown = LedgerError::OutcomeUnknown {
            stream: recoup::codec::StreamName::from_stored("job-j"),
            cause: "lost".to_owned(),
        };
        let unconfirmed = || StoreError::Unconfirmed {
            cause: "lost".to_owned(),
        };
        let cases: [(anyhow::Error, u8, Option<&str>); 9] = [
            (Usage("no".to_owned()).into(), 2, Some("usage")),
            (differs.into(), 2, Some("zone_differs")),
            (
                OpenError::Store(unavailable()).into(),
                1,
                Some("unavailable"),
            ),
            (
                LedgerError::Store(StoreError::Full).into(),
                1,
                Some("disk_full"),
            ),
            (unknown.into(), 5, Some("outcome_unknown")),
            (
                RebuildError::Store(unconfirmed()).into(),
                5,
                Some("outcome_unknown"),
            ),
            (
                BackupError::Store(StoreError::Full).into(),
                1,
                Some("disk_full"),
            ),
            (BackfillError::NotEmpty.into(), 1, Some("not_empty")),
            (anyhow::anyhow!("anything"), 1, None),
        ];
        for (error, exit, code) in cases {
            let error = Err::<(), _>(error)
                .context("while testing")
                .expect_err("an error");
            let (found, name) = classify(&error);
            assert_eq!((found.code(), name), (exit, code), "{error:#}");
        }
    }
}
