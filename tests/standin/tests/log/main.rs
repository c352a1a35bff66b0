//! The ledger's log in KurrentDB, against the stand-in.
//!
//! `conformance` runs the cases of the `EventStore` suite that need no account figures. `faults` loses answers, kills leaders and restarts servers.
//! `ledger` runs jobs over it. `stored` looks at what the server is given, and at what is refused of what it gives.
//!
//! No test sleeps to let something happen: waits are bounded, and end when what they wait for is there.

mod conformance;
mod events;
mod faults;
mod ledger;
mod stored;
mod world;
