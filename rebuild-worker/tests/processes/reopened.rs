//! A file that is opened twice, or that is at its path no more.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use recoup::store::StoreError;
use recoup::{AccountId, CommandId, Cost, Grant, GrantId, Ledger, LedgerError, Outcome};

use crate::children::eventually;
use crate::driver::hold;
use crate::sandbox::Sandbox;

async fn grant(ledger: &Ledger, name: &str) -> Result<Outcome, LedgerError> {
    let grant = Grant {
        account: AccountId::new("a").expect("an id"),
        grant: GrantId::new(name).expect("an id"),
        amount: Cost::new(10).expect("an amount"),
    };
    ledger.grant(CommandId::random(), grant).await
}

/// The locks of this process on the ledger's file itself, as Linux lists them.
fn locks(path: &Path) -> usize {
    let (process, inode) = (
        std::process::id().to_string(),
        fs::metadata(path).expect("it is there").ino(),
    );
    let listed = fs::read_to_string("/proc/locks").expect("Linux lists its locks");
    let is_ours = |line: &&str| {
        let mut words = line.split_whitespace();
        words.any(|word| word == process) && words.any(|word| word.ends_with(&format!(":{inode}")))
    };
    listed.lines().filter(is_ours).count()
}

/// Interleaving: this process opens the ledger twice. If that gave up its lock on the file, another process that opens and closes it
/// would take itself for the last one and remove the WAL that this one goes on writing to. (The SQLite that is compiled in has
/// guarded against that since 3.51; the other process may be of any version, so the lock is what counts.)
#[tokio::test]
async fn a_second_opening_in_one_process_gives_up_no_lock() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    let path = sandbox.file();
    let first = Ledger::open(&path).await.expect("it opens");
    assert!(
        grant(&first, "g1")
            .await
            .is_ok_and(|outcome| outcome.is_done())
    );
    // The list is read piece by piece while other processes come and go: a line may be missed once.
    eventually("one connection or many share one lock", || {
        (locks(&path) == 1).then_some(())
    });
    let second = Ledger::open(&path).await.expect("it opens");
    eventually("the lock is there after the second opening", || {
        (locks(&path) == 1).then_some(())
    });
    let mut other = hold(&sandbox.ledger.url());
    drop(other.0.stdin.take());
    assert!(other.0.wait().expect("it ends").success());
    for (ledger, name) in [(&first, "g2"), (&second, "g3")] {
        assert!(
            grant(ledger, name)
                .await
                .is_ok_and(|outcome| outcome.is_done())
        );
    }
    sandbox.line("account show a").ended(0).says("balance", 30);
    sandbox.audited();
}

#[tokio::test]
async fn nothing_is_acknowledged_into_a_file_that_was_removed_or_replaced() {
    let Some(sandbox) = Sandbox::on_file() else {
        return;
    };
    let path = sandbox.file();
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
