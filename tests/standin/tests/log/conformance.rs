//! The suite of the `EventStore` trait, as far as it is about events.

use recoup::store::conformance::Fixture;
use recoup::store::kurrentdb::{Log, Options};
use recoup_kurrentdb_standin::Standin;

use crate::world::{Folded, noon, options, ticks};

recoup::conformance_suite!(log one_node, || open(1));

recoup::conformance_suite!(log three_nodes, || open(3));

async fn open(nodes: usize) -> Fixture {
    Fixture::new(noon(), |clock| async move {
        let standin = Standin::with(nodes, ticks(clock.clone())).await;
        let options = Options {
            clock,
            ..options(&standin)
        };
        let log = Log::open(options).await.expect("a fresh ledger opens");
        (Folded(log), standin)
    })
    .await
}
