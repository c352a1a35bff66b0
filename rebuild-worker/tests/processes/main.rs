//! Processes: killed, stopped, many at once, on one ledger.
//!
//! Children are the binary itself, or this test binary run again as a *driver* ([`driver`]) that calls the library and writes down
//! every answer it got. A child that is killed may have had more done than it was told; what it was told must be there.

#[path = "../sandbox/mod.rs"]
mod sandbox;
#[path = "../server/server.rs"]
mod server;

mod between;
mod children;
mod crashed;
mod driver;
mod due;
mod killed;
mod log;
mod moved;
mod rebuilt;
mod reopened;
mod shared;
mod stopped;
mod up;
