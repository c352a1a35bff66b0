//! The ledger's log in KurrentDB, against the stand-in, and what needs no fault on command against a server as well: see `place`.
//!
//! `conformance` runs the cases of the `EventStore` suite that need no account figures. `everywhere` looks at what the server is given, who creates a ledger, and what
//! of others is passed over or refused. `faults` loses answers, kills leaders and restarts servers; `cluster` does so in the middle of an append, and `cuts` in the middle of a frame.
//! `ledger` runs jobs over that. `stored` has servers that give what they should not.
//!
//! No test sleeps to let something happen: waits are bounded, and end when what they wait for is there.

mod cluster;
mod conformance;
mod cuts;
mod events;
mod everywhere;
mod faults;
mod ledger;
mod place;
mod stored;
mod world;
