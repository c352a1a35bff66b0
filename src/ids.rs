//! Names of things: jobs, accounts, grants, commands.
//!
//! An id is text of 1 to 200 bytes of UTF-8, without control characters and without white space at its ends. It is
//! parsed once, where it enters; past that point a value of one of these types is valid. Every kind of id has a
//! type of its own, so that two of them cannot be swapped in a call.
//!
//! Ids compare byte by byte. No case folding and no Unicode normalisation is done: two ids that look alike
//! and differ in bytes are two ids.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

/// The longest id, in bytes.
pub const MAX_ID_BYTES: usize = 200;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// An id has at least one byte.
    #[error("{what} is empty")]
    Empty {
        /// Which kind of id was expected.
        what: &'static str,
    },
    /// Longer than [`MAX_ID_BYTES`].
    #[error("{what} has {bytes} bytes, more than {MAX_ID_BYTES}")]
    TooLong {
        /// Which kind of id was expected.
        what: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A control character, such as a line break.
    #[error("{what} has the control character U+{:04X} at byte {at}", *.found as u32)]
    Control {
        /// Which kind of id was expected.
        what: &'static str,
        /// The character.
        found: char,
        /// Its byte offset.
        at: usize,
    },
    /// White space at the start or the end.
    #[error("{what} starts or ends with white space")]
    Padded {
        /// Which kind of id was expected.
        what: &'static str,
    },
}

fn check(what: &'static str, text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { what });
    }
    if text.len() > MAX_ID_BYTES {
        return Err(IdError::TooLong {
            what,
            bytes: text.len(),
        });
    }
    if let Some((at, found)) = text.char_indices().find(|(_, c)| c.is_control()) {
        return Err(IdError::Control { what, found, at });
    }
    if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
        return Err(IdError::Padded { what });
    }
    Ok(())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses an id; see the module for what is allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check($what, text)?;
                Ok(Self(Arc::from(text)))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), &*self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::new(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

id!(
    /// One unit of metered work.
    JobId,
    "job id"
);
id!(
    /// Who holds credits.
    AccountId,
    "account id"
);
id!(
    /// One grant of an account; the account and this name it together.
    GrantId,
    "grant id"
);
id!(
    /// One adjustment of an account; the account and this name it together.
    AdjustmentId,
    "adjustment id"
);
id!(
    /// What sort of work a job is, such as `video.render`.
    Kind,
    "kind"
);
id!(
    /// The process that runs an attempt.
    WorkerId,
    "worker id"
);
id!(
    /// The price list that a cost was computed from.
    PriceListId,
    "price list id"
);
id!(
    /// What a price line counts, such as `input_tokens`.
    Unit,
    "unit"
);
id!(
    /// One request to change something. Made once by the caller, before the first try, and kept over every repeat.
    CommandId,
    "command id"
);

impl CommandId {
    /// A new command id that nobody has used: a UUIDv7, so that ids made later sort later.
    #[must_use]
    pub fn random() -> Self {
        Self(Arc::from(Uuid::now_v7().to_string()))
    }

    /// The command id of a loop or an import: the same `scope` and `parts` give the same id in every process.
    ///
    /// A UUIDv5 (RFC 9562, section 5.5) over the parts, each with its length in front, so that parts that join alike differ.
    #[must_use]
    pub fn derived(scope: Uuid, parts: &[&[u8]]) -> Self {
        Self(Arc::from(derive(scope, parts).to_string()))
    }
}

/// A UUIDv5 over `parts`, each preceded by its length as eight little-endian bytes.
pub(crate) fn derive(scope: Uuid, parts: &[&[u8]]) -> Uuid {
    let length: usize = parts.iter().map(|part| part.len() + 8).sum();
    let mut name = Vec::with_capacity(length);
    for part in parts {
        name.extend_from_slice(&(part.len() as u64).to_le_bytes());
        name.extend_from_slice(part);
    }
    Uuid::new_v5(&scope, &name)
}

macro_rules! bounded_text {
    ($(#[$doc:meta])* $name:ident, $error:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The longest text, in bytes of UTF-8.
            pub const MAX_BYTES: usize = $max;

            /// Takes a text of at most [`Self::MAX_BYTES`] bytes.
            pub fn new(text: impl AsRef<str>) -> Result<Self, $error> {
                let text = text.as_ref();
                if text.len() > Self::MAX_BYTES {
                    return Err($error { bytes: text.len() });
                }
                Ok(Self(Arc::from(text)))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $error;
            fn from_str(text: &str) -> Result<Self, $error> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(text).map_err(de::Error::custom)
            }
        }

        #[doc = concat!("A ", $what, " that is too long.")]
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        #[error("{} has {bytes} bytes, more than {}", $what, $max)]
        pub struct $error {
            bytes: usize,
        }
    };
}

bounded_text!(
    /// Why something was done, in a person's or a worker's words; at most 500 bytes.
    Reason,
    ReasonError,
    "reason",
    500
);
bounded_text!(
    /// What a delivered job gave: usually an address of the result; at most 2 KiB.
    JobResult,
    JobResultError,
    "result",
    2048
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked_where_they_enter() {
        assert!(JobId::new("a").is_ok());
        assert!(JobId::new("日本 語/é+%").is_ok());
        assert!(JobId::new("x".repeat(200)).is_ok());
        assert_eq!(JobId::new(""), Err(IdError::Empty { what: "job id" }));
        assert_eq!(
            JobId::new("x".repeat(300)),
            Err(IdError::TooLong {
                what: "job id",
                bytes: 300
            })
        );
        assert_eq!(
            JobId::new("a\nb"),
            Err(IdError::Control {
                what: "job id",
                found: '\n',
                at: 1
            })
        );
        assert_eq!(
            JobId::new("a\u{85}b"),
            Err(IdError::Control {
                what: "job id",
                found: '\u{85}',
                at: 1
            })
        );
        assert_eq!(JobId::new(" a"), Err(IdError::Padded { what: "job id" }));
        assert_eq!(
            JobId::new("a\u{3000}"),
            Err(IdError::Padded { what: "job id" })
        );
    }

    #[test]
    fn derived_ids_do_not_join_alike() {
        let scope = Uuid::NAMESPACE_OID;
        assert_ne!(
            CommandId::derived(scope, &[b"ab", b"c"]),
            CommandId::derived(scope, &[b"a", b"bc"])
        );
        assert_eq!(
            CommandId::derived(scope, &[b"a"]),
            CommandId::derived(scope, &[b"a"])
        );
    }
}
