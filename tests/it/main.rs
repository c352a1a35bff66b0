//! Integration tests of the core library, in one binary.
//!
//! `domain` holds the state × command table of a job's life as a table, and the rules around it. `codec` pins bytes and names.
//! `conformance` runs the suite of the `EventStore` trait over every store. `ledger` and `oracle` send random interleavings of every command
//! through real SQLite files and predict every balance and entry by other means. `faults` has a test for each fault that
//! another system of this kind was reported with.
//!
//! No test sleeps to let something happen: clocks are set by hand, races start at barriers, waits are bounded.

mod codec;
mod conformance;
mod domain;
mod faults;
mod file;
mod ledger;
mod oracle;
mod stores;
mod values;
