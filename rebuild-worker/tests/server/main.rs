//! A PostgreSQL server that crashes, sessions that are ended, and a network that loses answers, also of the database beside a log: nothing that was acknowledged is lost, nothing happens twice.
//!
//! Each test that ends a server has one of its own, made by `scripts/postgres`. Where the tests are not run over PostgreSQL, they say so and do nothing.

mod beside;
mod crash;
mod load;
mod network;
mod proxy;
mod server;
mod standby;
mod tls;
