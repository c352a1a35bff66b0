//! The file is not what it was, though no row says so by itself.

use std::fs;

use recoup::store::fresh::{Opening, backend};
use recoup::store::sqlite::{Options, SqliteStore};

use crate::audit::texts;
use crate::world::{EXTERNAL, World, audit};
use recoup::store::fresh::is_log_in_tables;

/// Two jobs, charged: positions 2 and 3.
async fn world() -> World {
    let world = World::new().await;
    world.postpaid("acme").await;
    for job in ["j1", "j2"] {
        world.charge(job, "acme", EXTERNAL, 40).await;
    }
    world.project().await;
    world
}

async fn found(world: &World) -> Vec<String> {
    texts(&audit(&world.store).await.unwrap())
}

#[tokio::test]
async fn a_guard_or_a_table_that_is_gone_is_found() {
    for (sql, what) in [
        (
            "DROP INDEX appends_stream_revision",
            "index appends_stream_revision is missing",
        ),
        ("DROP TABLE checkpoints", "table checkpoints is missing"),
        ("DROP INDEX jobs_account", "index jobs_account is missing"),
    ] {
        let world = world().await;
        world.sql(sql);
        let found = found(&world).await;
        assert!(
            found.contains(&format!("file: schema: {what}")),
            "{found:#?}"
        );
    }
}

#[tokio::test]
async fn a_ledger_without_its_guard_is_not_opened() {
    let world = world().await;
    world.sql("DROP INDEX appends_stream_revision");
    let opened = world.fresh.open_with(Opening::default()).await;
    let why = opened.map(|_| ()).unwrap_err().to_string();
    assert!(
        why.contains("index appends_stream_revision is missing"),
        "{why}"
    );
}

/// One byte of the guard: the next charge of that job would find nothing in its way.
#[tokio::test]
async fn an_index_that_lacks_an_entry_is_found() {
    if backend() != "sqlite" {
        eprintln!("skipped: it changes bytes of the ledger's file");
        return;
    }
    let world = world().await;
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    let page = "SELECT rootpage FROM sqlite_schema WHERE name = 'appends_stream_revision'";
    let page: u32 = connection.query_row(page, [], |row| row.get(0)).unwrap();
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    let mut bytes = fs::read(world.path()).unwrap();
    let page = &mut bytes[(page as usize - 1) * 4_096..page as usize * 4_096];
    let at = page.windows(6).position(|some| some == b"job-j2").unwrap();
    page[at + 5] = b'!';
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.db");
    fs::write(&copy, bytes).unwrap();
    let store = SqliteStore::open(Options::at(copy)).await.unwrap();
    let found = texts(&audit(&store.into()).await.unwrap());
    assert!(
        found.iter().any(|text| text.starts_with("file: pages: ")),
        "{found:#?}"
    );
}

#[tokio::test]
async fn an_id_is_that_of_its_place_and_command() {
    if !is_log_in_tables() {
        return;
    }
    let another_command = |world: &World| {
        world.sql(
            r#"UPDATE appends SET metadata = replace(metadata, '"$causationId":"', '"$causationId":"x') WHERE position = 2"#,
        );
    };
    let another_id = |world: &World| {
        let mut body = world.body(2);
        // Behind the number of events, the first byte of an id.
        body[1] ^= 0xFF;
        world.set_body(2, &body);
    };
    let changes: [&dyn Fn(&World); 2] = [&another_command, &another_id];
    for change in changes {
        let world = world().await;
        change(&world);
        let found = found(&world).await;
        let start = "events: event 2: its id is not that of its place and command";
        assert!(
            found.iter().any(|text| text.starts_with(start)),
            "{found:#?}"
        );
    }
}
