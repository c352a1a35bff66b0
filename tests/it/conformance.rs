//! The suite of the `EventStore` trait, over every store there is.

use std::sync::Arc;

use recoup::Zone;
use recoup::store::conformance::Fixture;
use recoup::store::faulty::{Faults, FaultyStore};
use recoup::store::fresh::Fresh;
use recoup::store::memory::MemoryStore;

use crate::values::noon;

recoup::conformance_suite!(memory, || {
    Fixture::new(noon(), |clock| async {
        (MemoryStore::new(Zone::UTC, clock), ())
    })
});

// Over the backend that the tests are run over.
recoup::conformance_suite!(database, || {
    Fixture::new(noon(), |clock| async {
        let fresh = Fresh::new();
        (fresh.open(clock).await, fresh)
    })
});

// The wrapper of the other tests changes nothing as long as it loses nothing.
recoup::conformance_suite!(memory_behind_a_wrapper_without_faults, || {
    Fixture::new(noon(), |clock| async {
        let inner = Arc::new(MemoryStore::new(Zone::UTC, clock));
        (FaultyStore::new(inner, Faults::default(), 1), ())
    })
});
