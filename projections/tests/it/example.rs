//! The example does what it says.

#[expect(dead_code, reason = "its main prints what is looked at here")]
#[path = "../../examples/worker.rs"]
mod worker;

#[tokio::test]
async fn the_worker_ends_with_every_job_settled() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("worker.db");
    let summary = worker::work_off(&path).await.unwrap();
    let states: Vec<_> = summary.states.values().copied().collect();
    // cursed, flaky, sound-1, sound-2
    let delivered = "delivered";
    assert_eq!(states, ["dead_lettered", delivered, delivered, delivered]);
    assert_eq!(summary.balance, 1_000 - 3 * 40);
    let letter = "cursed (cap_reached, lease_until ran out)";
    assert_eq!(summary.dead_letters, [letter]);
}
