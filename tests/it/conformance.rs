//! The suite of the `EventStore` trait, over every store there is.

use std::sync::Arc;

use recoup::Zone;
use recoup::store::conformance::Fixture;
use recoup::store::faulty::{Faults, FaultyStore};
use recoup::store::memory::MemoryStore;
use recoup::store::sqlite::{Options, SqliteStore};

use crate::values::noon;

recoup::conformance_suite!(memory, || {
    Fixture::new(noon(), |clock| async {
        (MemoryStore::new(Zone::UTC, clock), ())
    })
});

recoup::conformance_suite!(sqlite, || {
    Fixture::new(noon(), |clock| async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options {
            clock,
            ..Options::at(folder.path().join("ledger.db"))
        };
        let store = SqliteStore::open(options)
            .await
            .expect("a fresh ledger opens");
        (store, folder)
    })
});

// The wrapper of the other tests changes nothing as long as it loses nothing.
recoup::conformance_suite!(memory_behind_a_wrapper_without_faults, || {
    Fixture::new(noon(), |clock| async {
        let inner = Arc::new(MemoryStore::new(Zone::UTC, clock));
        (FaultyStore::new(inner, Faults::default(), 1), ())
    })
});
