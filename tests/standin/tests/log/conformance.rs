//! The suite of the `EventStore` trait, as far as it is about events: over the stand-in, and over the server that the tests are given.

use recoup::store::conformance::Fixture;
use recoup::store::kurrentdb::{Log, Options};
use recoup_kurrentdb_standin::Standin;

use crate::place::Place;
use crate::world::{Folded, noon, options, ticks};

recoup::conformance_suite!(log one_node, || open(1));

recoup::conformance_suite!(log three_nodes, || open(3));

recoup::conformance_suite!(log over_a_server, open_on_the_server);

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

async fn open_on_the_server() -> Option<Fixture> {
    let place = Place::given().await?;
    let fixture = Fixture::new(noon(), |clock| async move {
        let options = Options {
            clock,
            ..place.options()
        };
        let log = Log::open(options).await.expect("a fresh ledger opens");
        (Folded(log), place)
    });
    Some(fixture.await.stamped_by_its_server())
}
