//! Names of streams: `job-<id>`, `grant-<account>+<id>`, `adjustment-<account>+<id>`, `limits-<account>`.
//!
//! Bytes of a part outside `[A-Za-z0-9._:@]` are percent-encoded (RFC 3986, section 2.1, upper-case digits), so `+` and `-` separate and never
//! stand inside a part: accounts and grants whose parts join alike have different streams.

use std::fmt;
use std::sync::Arc;

use crate::ids::{AccountId, AdjustmentId, GrantId, JobId};

/// Whose stream it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Stream {
    /// A job's.
    Job(JobId),
    /// A grant's; it holds one event.
    Grant(AccountId, GrantId),
    /// An adjustment's; it holds one event.
    Adjustment(AccountId, AdjustmentId),
    /// An account's limits.
    Limits(AccountId),
}

/// The encoded name of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName(Arc<str>);

/// A text that names no stream of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not the name of a recoup stream")]
pub struct StreamNameError {
    name: String,
}

impl Stream {
    /// Encodes the name.
    #[must_use]
    pub fn name(&self) -> StreamName {
        let mut name = String::with_capacity(48);
        match self {
            Self::Job(job) => {
                name.push_str("job-");
                encode(&mut name, job.as_str());
            }
            Self::Grant(account, grant) => {
                name.push_str("grant-");
                encode(&mut name, account.as_str());
                name.push('+');
                encode(&mut name, grant.as_str());
            }
            Self::Adjustment(account, adjustment) => {
                name.push_str("adjustment-");
                encode(&mut name, account.as_str());
                name.push('+');
                encode(&mut name, adjustment.as_str());
            }
            Self::Limits(account) => {
                name.push_str("limits-");
                encode(&mut name, account.as_str());
            }
        }
        StreamName(Arc::from(name))
    }

    /// The id that joins everything in this stream, for `$correlationId`.
    #[must_use]
    pub fn correlation(&self) -> &str {
        match self {
            Self::Job(job) => job.as_str(),
            Self::Grant(_, grant) => grant.as_str(),
            Self::Adjustment(_, adjustment) => adjustment.as_str(),
            Self::Limits(account) => account.as_str(),
        }
    }
}

impl StreamName {
    /// Takes a stored name as it is; [`Self::parse`] says whose it is.
    #[must_use]
    pub fn from_stored(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The encoded text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The job, if it is a job's stream. Cheaper than [`Self::parse`].
    #[must_use]
    pub fn is_job(&self) -> bool {
        self.0.starts_with("job-")
    }

    /// Reads whose stream it is.
    pub fn parse(&self) -> Result<Stream, StreamNameError> {
        self.try_parse().ok_or_else(|| StreamNameError {
            name: self.0.to_string(),
        })
    }

    fn try_parse(&self) -> Option<Stream> {
        let (category, rest) = self.0.split_once('-')?;
        let account = |part: &str| AccountId::new(decode(part)?).ok();
        match category {
            "job" => Some(Stream::Job(JobId::new(decode(rest)?).ok()?)),
            "grant" => {
                let (first, second) = rest.split_once('+')?;
                Some(Stream::Grant(
                    account(first)?,
                    GrantId::new(decode(second)?).ok()?,
                ))
            }
            "adjustment" => {
                let (first, second) = rest.split_once('+')?;
                Some(Stream::Adjustment(
                    account(first)?,
                    AdjustmentId::new(decode(second)?).ok()?,
                ))
            }
            "limits" => Some(Stream::Limits(account(rest)?)),
            _ => None,
        }
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'@')
}

fn encode(name: &mut String, part: &str) {
    for &byte in part.as_bytes() {
        if is_plain(byte) {
            name.push(char::from(byte));
        } else {
            name.push('%');
            name.push(char::from(HEX[usize::from(byte >> 4)]));
            name.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// The decoded part; none if it is not what [`encode`] gives, so that two names never stand for one part.
fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            if !is_plain(byte) {
                return None;
            }
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| {
            HEX.iter()
                .position(|&hex| hex == byte)
                .and_then(|at| u8::try_from(at).ok())
        };
        let decoded = (digit(rest.next()?)? << 4) | digit(rest.next()?)?;
        if is_plain(decoded) {
            return None;
        }
        bytes.push(decoded);
    }
    String::from_utf8(bytes).ok()
}
