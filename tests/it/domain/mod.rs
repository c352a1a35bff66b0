//! The domain without a store: a job's life, decided and folded by hand.
//!
//! - [`life`]: given/when/then. A [`life::Life`] is one stream with a simulated clock.
//! - [`table`]: every state × every command, as the specification writes it; [`notation`] is how a cell is written.
//! - [`rules`], [`repeats`], [`bounds`]: what the table cannot show.
//! - [`walk`]: every reachable state, breadth first, in step with the tiny model in [`model`].
//! - [`history`]: what the fold refuses to believe.

mod bounds;
mod history;
pub(crate) mod life;
mod model;
mod notation;
mod repeats;
mod rules;
mod table;
mod walk;
