//! Whether an append's events went out.
//!
//! The client takes the events of an append from an iterator, and does so only when the connection takes the request's body. So the iterator knows what no
//! error says: whether anything was sent. Whoever gives up on an append withdraws it: if the iterator was not asked before that, it never gives an event,
//! however late it is asked, and the server cannot have written any. One atomic step decides between the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const CLOSED: u8 = 0;
const PASSED: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Decides between the one who sends and the one who gives up.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate(Arc<AtomicU8>);

impl Gate {
    /// `events`, as long as nobody withdraws them.
    pub(super) fn guard<I>(&self, events: I) -> Guarded<I> {
        Guarded {
            gate: self.clone(),
            events,
        }
    }

    /// Gives up. Says whether that was in time: nothing has been sent, and nothing will be.
    pub(super) fn withdraw(&self) -> bool {
        self.swap(WITHDRAWN) != PASSED
    }

    fn pass(&self) -> bool {
        self.swap(PASSED) != WITHDRAWN
    }

    /// Puts `mine` where nothing is yet; gives what is there then.
    fn swap(&self, mine: u8) -> u8 {
        let swapped = self
            .0
            .compare_exchange(CLOSED, mine, Ordering::AcqRel, Ordering::Acquire);
        swapped.map_or_else(|there| there, |_| mine)
    }
}

/// Events behind a gate.
#[derive(Debug)]
pub(super) struct Guarded<I> {
    gate: Gate,
    events: I,
}

impl<I: Iterator> Iterator for Guarded<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        if self.gate.pass() {
            self.events.next()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_cannot_be_withdrawn() {
        let gate = Gate::default();
        let mut events = gate.guard([1, 2].into_iter());
        assert_eq!(events.next(), Some(1));
        assert!(!gate.withdraw());
        // An append that has begun is sent whole: half of it would be another one.
        assert_eq!(events.collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn what_was_withdrawn_is_never_taken() {
        let gate = Gate::default();
        let events = gate.guard([1, 2].into_iter());
        assert!(gate.withdraw());
        assert!(gate.withdraw());
        assert_eq!(events.count(), 0);
    }
}
