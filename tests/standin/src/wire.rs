//! What the protocol's files say, as Rust; generated.
#![expect(missing_docs, reason = "generated from the protocol's files")]

include!(concat!(env!("OUT_DIR"), "/wire.rs"));
