//! What every [`EventStore`] must do: one suite, run over each of them.
//!
//! ```text
//! recoup::conformance_suite!(memory, || async {
//!     Fixture::new(noon(), |clock| async move { (MemoryStore::new(Zone::UTC, clock), ()) }).await
//! });
//! ```
//!
//! expands to a module `memory` with one `#[tokio::test]` per case. Each case gets a fresh, empty store in the zone UTC, whose clock is
//! a [`ManualClock`] that the case sets, and a guard that is dropped after it. The caller needs tokio with `macros` and
//! `rt-multi-thread` in its own dependencies.
//!
//! The cases know the trait and nothing of its implementations. Races start at a barrier, and every wait is bounded by
//! [`PATIENCE`]: a store that hangs fails its case. No case sleeps.
//!
//! A store that keeps events only, without account figures and numbers from 1 on, runs the cases of a log: `conformance_suite!(log name, …)`.
//! What it answers `accounts` with must then be folded from its events. One whose log and figures are in two databases runs all cases but those of
//! numbers without holes, of one order for unrelated appends, and of figures that are computed before anything is written: `conformance_suite!(beside name, …)`.
//!
//! What opens a fixture may give an `Option`: none where there is no server to open it on, which it has said aloud. The case is passed over.
//!
//! - `appending`: the guard, atomicity, order, what is stored with an event.
//! - `reading`: streams, pages of the log, the head.
//! - `admission`: limits inside the append, and the figures that guard it.
//! - `grouping`: many appends in one call.
//! - `races`: concurrent callers, callers that go away, the wake-up signal.

mod admission;
mod appending;
mod grouping;
mod races;
mod reading;
mod samples;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use admission::{
    a_balance_out_of_range_is_refused, a_cap_admits_exactly_what_fits,
    a_charge_must_leave_the_floor, a_figure_that_leaves_its_range_fails_its_own_append,
    a_floor_admits_exactly_what_fits, a_hold_is_not_available, a_refused_append_writes_nothing,
    accounts_are_paged_in_byte_order, an_account_gives_the_month_that_was_asked_for,
    an_unknown_account_has_zeros, figures_equal_an_independent_sum, limits_that_are_set_decide,
    the_revision_is_checked_before_the_limits,
};
pub use appending::{
    a_conflict_gives_the_current_revision, a_conflict_writes_nothing, a_store_has_one_identity,
    an_append_is_read_back_whole, an_append_of_many_events_is_one_step, no_stream_is_a_guard,
    positions_follow_each_other, posted_at_never_decreases, the_answer_says_where_and_when,
};
pub use grouping::{
    a_chain_on_one_stream_is_committed_in_order, a_conflict_in_the_middle_fails_nobody_else,
    a_refused_member_writes_nothing_and_fails_nobody_else, many_appends_are_answered_in_order,
    members_share_the_figures_in_order, no_appends_are_no_answers,
    nothing_behind_a_broken_link_is_tried, nothing_behind_a_refused_link_is_tried,
    the_order_of_a_call_is_the_order_of_the_log,
};
pub use races::{
    a_dropped_append_is_there_whole_or_not_at_all, concurrent_charges_never_pass_the_cap,
    concurrent_charges_never_pass_the_floor, concurrent_postings_to_one_account_lose_none,
    fault_25_a_reader_passes_nothing_that_commits_late,
    of_appends_at_one_revision_exactly_one_wins, the_signal_shows_the_head_in_the_end,
    the_signal_wakes_a_waiter,
};
pub use reading::{
    a_page_may_begin_and_end_inside_an_append, a_stream_is_read_from_any_revision,
    many_streams_are_read_in_the_order_asked_for, pages_of_every_size_give_the_whole_log,
    the_head_is_the_last_position, what_is_not_there_is_empty,
};

use super::EventStore;
use crate::clock::{Clock, ManualClock, SystemClock, Timestamp};

/// How long a case waits for a store before it says that the store hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A fresh store for one case.
pub struct Fixture {
    /// The store, empty.
    pub store: Arc<dyn EventStore>,
    /// The store's clock.
    pub clock: ManualClock,
    /// Whether a server stamps events by its own clock, which no case can set.
    is_stamped_by_its_server: bool,
    /// Whatever must live as long as the store: a temporary folder, a connection, a server.
    guard: Box<dyn Any + Send + Sync>,
}

impl Fixture {
    /// Opens a store on a clock that shows `start`. `open` gives the store and its guard.
    pub async fn new<S, G, F>(start: Timestamp, open: impl FnOnce(Arc<dyn Clock>) -> F) -> Self
    where
        S: EventStore,
        G: Any + Send + Sync,
        F: Future<Output = (S, G)>,
    {
        let clock = ManualClock::starting_at(start);
        let (store, guard) = open(Arc::new(clock.clone())).await;
        Self {
            store: Arc::new(store),
            clock,
            is_stamped_by_its_server: false,
            guard: Box::new(guard),
        }
    }

    /// The same, of a store whose events are stamped by the clock of a server.
    #[must_use]
    pub fn stamped_by_its_server(self) -> Self {
        Self {
            is_stamped_by_its_server: true,
            ..self
        }
    }

    /// Whether what the case has just appended may have been posted then: a server's clock is an hour off at most, or shows no such time at all.
    pub(crate) fn may_be_posted_at(&self, posted_at: Timestamp) -> bool {
        const HOUR_MICROS: u64 = 3_600_000_000;
        if self.is_stamped_by_its_server {
            let now = SystemClock.now().as_micros();
            posted_at.as_micros().abs_diff(now) < HOUR_MICROS
        } else {
            posted_at == self.clock.now()
        }
    }

    /// Ends the case: the store goes first, then what it stood on.
    pub fn close(self) {
        let Self {
            store,
            clock,
            is_stamped_by_its_server: _,
            guard,
        } = self;
        drop(store);
        drop(clock);
        drop(guard);
    }
}

impl std::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            store,
            clock,
            is_stamped_by_its_server,
            guard: _,
        } = self;
        f.debug_struct("Fixture")
            .field("store", store)
            .field("clock", clock)
            .field("is_stamped_by_its_server", is_stamped_by_its_server)
            .finish_non_exhaustive()
    }
}

/// Waits for `future`, but not for ever.
pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: no answer within {PATIENCE:?}"),
    }
}

/// Expands to a module with one test per case of the suite, each over a fresh [`Fixture`]. See [`conformance`](self).
#[macro_export]
macro_rules! conformance_suite {
    (log $name:ident, $open:expr) => {
        $crate::conformance_suite! { @with_log $name, $open, }
    };
    (beside $name:ident, $open:expr) => {
        $crate::conformance_suite! { @with_figures $name, $open, }
    };
    ($name:ident, $open:expr) => {
        $crate::conformance_suite! { @with_figures $name, $open,
            positions_follow_each_other
            posted_at_never_decreases
            the_order_of_a_call_is_the_order_of_the_log
            a_figure_that_leaves_its_range_fails_its_own_append
        }
    };
    (@with_figures $name:ident, $open:expr, $($more:ident)*) => {
        $crate::conformance_suite! { @with_log $name, $open,
            an_unknown_account_has_zeros
            a_floor_admits_exactly_what_fits
            a_cap_admits_exactly_what_fits
            a_charge_must_leave_the_floor
            a_hold_is_not_available
            a_balance_out_of_range_is_refused
            a_refused_append_writes_nothing
            the_revision_is_checked_before_the_limits
            limits_that_are_set_decide
            figures_equal_an_independent_sum
            an_account_gives_the_month_that_was_asked_for
            accounts_are_paged_in_byte_order

            a_refused_member_writes_nothing_and_fails_nobody_else
            members_share_the_figures_in_order
            nothing_behind_a_refused_link_is_tried

            concurrent_charges_never_pass_the_floor
            concurrent_charges_never_pass_the_cap
            concurrent_postings_to_one_account_lose_none
            $($more)*
        }
    };
    (@with_log $name:ident, $open:expr, $($more:ident)*) => {
        $crate::conformance_suite! { @cases $name, $open,
            no_stream_is_a_guard
            a_conflict_gives_the_current_revision
            a_conflict_writes_nothing
            an_append_is_read_back_whole
            an_append_of_many_events_is_one_step
            the_answer_says_where_and_when
            a_store_has_one_identity

            what_is_not_there_is_empty
            a_stream_is_read_from_any_revision
            many_streams_are_read_in_the_order_asked_for
            pages_of_every_size_give_the_whole_log
            a_page_may_begin_and_end_inside_an_append
            the_head_is_the_last_position

            no_appends_are_no_answers
            many_appends_are_answered_in_order
            a_chain_on_one_stream_is_committed_in_order
            a_conflict_in_the_middle_fails_nobody_else
            nothing_behind_a_broken_link_is_tried

            of_appends_at_one_revision_exactly_one_wins
            fault_25_a_reader_passes_nothing_that_commits_late
            a_dropped_append_is_there_whole_or_not_at_all
            the_signal_wakes_a_waiter
            the_signal_shows_the_head_in_the_end

            $($more)*
        }
    };
    (@cases $name:ident, $open:expr, $($case:ident)*) => {
        mod $name {
            use super::*;

            $(
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let opened: ::std::option::Option<$crate::store::conformance::Fixture> = ($open)().await.into();
                    let ::std::option::Option::Some(fixture) = opened else {
                        return;
                    };
                    $crate::store::conformance::$case(&fixture).await;
                    fixture.close();
                }
            )*
        }
    };
}
