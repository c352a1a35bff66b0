//! A file that is opened twice, or that is at its path no more.

use std::fs;

use recoup::store::StoreError;
use recoup::{AccountId, CommandId, Cost, Grant, GrantId, Ledger, LedgerError, Outcome};

use crate::sandbox::Sandbox;

async fn grant(ledger: &Ledger, name: &str) -> Result<Outcome, LedgerError> {
    let grant = Grant {
        account: AccountId::new("a").expect("an id"),
        grant: GrantId::new(name).expect("an id"),
        amount: Cost::new(10).expect("an amount"),
    };
    ledger.grant(CommandId::random(), grant).await
}

/// Interleaving: this process opens the ledger twice. Another opens and closes it: if it took itself for the last one, it would
/// remove the WAL that this process goes on writing to. A third looks for what this one was told is stored.
#[tokio::test]
async fn a_second_opening_in_one_process_gives_up_no_lock() {
    let sandbox = Sandbox::new();
    let path = sandbox.ledger();
    let first = Ledger::open(&path).await.expect("it opens");
    assert!(
        grant(&first, "g1")
            .await
            .is_ok_and(|outcome| outcome.is_done())
    );
    let _second = Ledger::open(&path).await.expect("it opens");
    sandbox.line("account show a").ended(0).says("balance", 10);
    assert!(
        grant(&first, "g2")
            .await
            .is_ok_and(|outcome| outcome.is_done())
    );
    sandbox.line("account show a").ended(0).says("balance", 20);
    sandbox.audited();
}

#[tokio::test]
async fn nothing_is_acknowledged_into_a_file_that_was_removed_or_replaced() {
    let sandbox = Sandbox::new();
    let path = sandbox.ledger();
    let ledger = Ledger::open(&path).await.expect("it opens");
    assert!(
        grant(&ledger, "g1")
            .await
            .is_ok_and(|outcome| outcome.is_done())
    );
    fs::rename(&path, sandbox.path("away.db")).expect("moved");
    let removed = grant(&ledger, "g2").await;
    assert!(
        matches!(removed, Err(LedgerError::Store(StoreError::Damaged { .. }))),
        "{removed:?}"
    );
    // The WAL is still there: whoever comes now must not begin anew beside it.
    sandbox.line("account show a").ended(1);
}
