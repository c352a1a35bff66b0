//! The ledger whose log is in KurrentDB, over the stand-in, with a database beside it: SQLite, or PostgreSQL (`RECOUP_TEST_BACKEND=postgres`).

mod behind;
mod binding;
mod cluster;
mod conformance;
mod figures;
mod projected;
mod reservations;
mod world;
