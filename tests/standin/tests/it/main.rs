//! The stand-in, as the official client sees it.

mod faults;
mod protocol;
mod subscriptions;
mod world;
