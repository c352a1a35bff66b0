//! What the protocol's files say, as Rust; generated.
#![expect(
    missing_docs,
    clippy::allow_attributes_without_reason,
    clippy::allow_attributes,
    clippy::large_enum_variant,
    reason = "generated from the protocol's files"
)]

include!(concat!(env!("OUT_DIR"), "/wire.rs"));
