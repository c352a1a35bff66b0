//! A server on this machine that insists on TLS: without being asked, it is not used there.

use recoup::store::fresh::Fresh;
use recoup::store::postgres::{Options, PostgresStore, exists, remove};

use crate::server::{Server, is_wanted};

impl Server {
    /// Lets nobody in any more without TLS: for sessions to come.
    fn insist_on_tls(&self) {
        let rules = self.dir().join("data/pg_hba.conf");
        let text = std::fs::read_to_string(&rules).expect("it is there");
        let only: String = text
            .lines()
            .map(|line| match line.strip_prefix("host ") {
                Some(rest) => format!("hostssl {rest}\n"),
                None => format!("{line}\n"),
            })
            .collect();
        std::fs::write(&rules, only).expect("it can be written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_near_server_that_insists_on_tls_gets_it() {
    if !is_wanted() {
        return;
    }
    let server = Server::start();
    let fresh = Fresh::on_server(&server.url);
    let is_encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(fresh.table(is_encrypted), [["f"]]);
    server.insist_on_tls();
    server.end_at_once();
    server.recover();
    assert_eq!(fresh.table(is_encrypted), [["t"]]);
    let url = fresh.url();
    let store = PostgresStore::open(Options::at(&url)).await;
    drop(store.expect("it opens"));
    assert!(exists(&url).await.expect("it can be asked"));
    remove(&url).await.expect("it can be removed");
    // Whoever says so gets none.
    let plain = format!("{url}&sslmode=disable");
    let refused = PostgresStore::open(Options::at(&plain)).await;
    let said = refused.expect_err("it is refused").to_string();
    assert!(said.contains("no encryption"), "{said}");
}
