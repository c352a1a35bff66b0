//! The suite of the `EventStore` trait, with figures beside the log.

use recoup::store::conformance::Fixture;
use recoup::store::fresh::Fresh;
use recoup::store::kurrentdb::Options;
use recoup_kurrentdb_standin::Standin;

use crate::world::{noon, open_beside, ticks};

recoup::conformance_suite!(beside one_node, || open(1));

recoup::conformance_suite!(beside three_nodes, || open(3));

async fn open(nodes: usize) -> Fixture {
    Fixture::new(noon(), |clock| async move {
        let standin = Standin::with(nodes, ticks(clock.clone())).await;
        let fresh = Fresh::new();
        let options = Options {
            clock: clock.clone(),
            ..Options::at(standin.connection_string())
        };
        let store = open_beside(&fresh, options, clock).await;
        (store.expect("a fresh ledger opens"), (standin, fresh))
    })
    .await
}
