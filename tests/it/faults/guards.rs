//! Guards and unknown outcomes, and what cannot be read.

use std::sync::Arc;
use std::time::Duration;

use recoup::codec::{Event, EventType, Stream};
use recoup::job::{Failed, JobEvent};
use recoup::ledger::MAX_REPEATS;
use recoup::store::{Append, Appended, Expected, StoreError};
use recoup::{Command, CommandId, EventStore, JobCommand, LedgerError, Mode, Outcome, Revision};

use super::{answer, claimed, external, failing, granting};
use crate::domain::life::{extend, start, succeed};
use crate::ledger::races::{apply, at_once, balance, counts, on, two_processes};
use crate::stores::{Fate, Place, Scripted, ledger, log};
use crate::values::{charge, command_id, job_id, policy};
use recoup::store::fresh::is_log_in_tables;

/// A write timed out, an error was returned, and the event was stored. Interleaving: the append commits, its answer and those of all repeats are
/// lost. Protection: the outcome is unknown, never failed; the identical append is repeated and what is stored compared; the command's repeat is
/// answered from the stream.
#[tokio::test]
async fn fault_08_a_stored_event_is_never_called_failed() {
    let place = Place::new();
    let plain = place.store().await;
    let scripted = Scripted::new(plain.clone());
    let ledger = ledger(scripted.clone());
    apply(&ledger, granting("opening", 100)).await;
    // One answer lost: the ledger finds out by itself.
    scripted.then([Fate::AnswerLost]);
    on(&ledger, "a", external(40)).await;
    // All answers lost: the caller is told that nobody knows, which is not what a refusal or an unavailable store is called.
    let tries = usize::try_from(MAX_REPEATS).expect("few") + 1;
    scripted.then(vec![Fate::AnswerLost; tries]);
    let id = command_id("fail a");
    let lost = ledger.job(id.clone(), job_id("a"), failing()).await;
    assert!(
        matches!(lost, Err(LedgerError::OutcomeUnknown { .. })),
        "{lost:?}"
    );
    assert_eq!(balance(&ledger).await, 100, "it had been stored");
    let repeated = ledger
        .job(id, job_id("a"), failing())
        .await
        .expect("answered");
    assert!(
        matches!(repeated, Outcome::AlreadyApplied(_)),
        "{repeated:?}"
    );
    assert_eq!((balance(&ledger).await, log(&*plain).await.len()), (100, 5));
}

/// The same event id was accepted a second time at the current revision. Interleaving: a command is applied, and comes again when the stream has
/// moved on, to a process whose cached state is from before it, at every revision. Protection: the command id is looked up in the stream, freshly
/// read; ids of events decide nothing.
#[tokio::test]
async fn fault_09_a_command_is_applied_once_whatever_the_revision() {
    let place = Place::new();
    let [ledger, stale] = two_processes(&place, 1_000).await;
    let (id, job) = (command_id("renew"), job_id("a"));
    on(&ledger, "a", claimed(40)).await;
    on(&ledger, "a", start()).await;
    stale.show(&job).await.expect("readable");
    answer(&stale, "a", extend(1))
        .await
        .receipt()
        .expect("it has seen the stream");
    place.clock.advance(Duration::from_secs(30));
    let renewed = ledger
        .job(id.clone(), job.clone(), extend(1))
        .await
        .expect("answered");
    assert!(matches!(renewed, Outcome::Applied(_)), "{renewed:?}");
    let renewals = |history: &[recoup::ledger::load::History]| {
        history
            .iter()
            .filter(|event| matches!(event.event, Some(JobEvent::LeaseExtended(_))))
            .count()
    };
    for _ in 0..3 {
        place.clock.advance(Duration::from_secs(30));
        for ledger in [&stale, &ledger, &place.ledger().await] {
            let again = ledger
                .job(id.clone(), job.clone(), extend(1))
                .await
                .expect("answered");
            assert!(matches!(again, Outcome::AlreadyApplied(_)), "{again:?}");
        }
    }
    let (_, history) = ledger.show(&job).await.expect("readable");
    assert_eq!(renewals(&history), 1);
    // The store itself believes no id: the identical append at the current revision is another append.
    let store = place.store().await;
    let end = Event::Job(JobEvent::Failed(Failed { hold: None }));
    let append = |expected| {
        Append::new(
            &Stream::Job(job_id("raw")),
            expected,
            &command_id("raw"),
            vec![end.clone()],
            None,
        )
    };
    let first = append(Expected::NoStream);
    assert!(matches!(
        store.append(first.clone()).await,
        Ok(Appended::Committed { .. })
    ));
    assert_eq!(
        store.append(first).await,
        Ok(Appended::Conflict {
            current: Some(Revision::FIRST)
        })
    );
}

/// Only the source was locked, and of two transfers to one destination one was lost; the newest row was locked instead of a fixed one.
/// Interleaving: refunds, grants and charges of many streams on one account at once, from two processes; and failures of one job at once. Protection:
/// (stream, revision) is unique, and the account's figures are written in the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_10_concurrent_postings_to_one_account_all_count() {
    let place = Place::new();
    let ledgers = two_processes(&place, 10_000).await;
    for number in 0..20 {
        on(&ledgers[number % 2], &format!("j{number}"), external(10)).await;
    }
    let mut commands = Vec::new();
    for number in 0..20 {
        let job = job_id(&format!("j{number}"));
        commands.push((CommandId::random(), Command::Job(job.clone(), failing())));
        commands.push((CommandId::random(), Command::Job(job, failing())));
        commands.push((CommandId::random(), granting(&format!("g{number}"), 1)));
        commands.push((
            CommandId::random(),
            Command::Job(job_id(&format!("k{number}")), external(100)),
        ));
    }
    let answers = at_once(&ledgers, commands).await;
    assert_eq!(answers, counts([("applied", 60), ("already_applied", 20)]));
    assert_eq!(balance(&ledgers[0]).await, 10_000 + 20 - 20 * 100);
}

/// Bytes of a type that this build has never heard of, or of a newer version, behind a charge.
async fn with_a_foreign_event(store: &dyn EventStore, job: &str, event_type: EventType) {
    let end = Event::Job(JobEvent::Failed(Failed { hold: None }));
    let stream = Stream::Job(job_id(job));
    let mut append = Append::new(
        &stream,
        Expected::Exact(Revision::FIRST),
        &command_id("from the future"),
        vec![end],
        None,
    );
    append.events[0].event_type = event_type;
    let answer = store.append(append).await;
    assert!(
        matches!(answer, Ok(Appended::Committed { .. })),
        "{answer:?}"
    );
}

/// A type was retired and its old rows stalled the projector; and an old binary that skips what it does not know would refund again. Interleaving:
/// a newer process has refunded a job by an event that this build does not know; then the failure arrives here, by every route.
/// Protection: what cannot be read refuses every command on its stream, and on no other. (That a retired type is skipped: see `codec`.)
#[tokio::test]
async fn fault_28_what_cannot_be_read_refuses_commands_on_its_stream_alone() {
    if !is_log_in_tables() {
        return;
    }
    let newer = [
        EventType {
            name: "recoup.job.partly_refunded",
            version: 1,
        },
        EventType {
            name: "recoup.job.refunded",
            version: 2,
        },
    ];
    for event_type in newer {
        let place = Place::new();
        let [ledger, cached] = two_processes(&place, 1_000).await;
        on(&cached, "a", external(40)).await;
        let store = place.store().await;
        with_a_foreign_event(&*store, "a", event_type).await;
        let before = (log(&*store).await.len(), store.accounts(None, 10).await);
        for ledger in [&ledger, &cached] {
            for command in [
                external(40),
                start(),
                extend(1),
                failing(),
                succeed(1),
                JobCommand::Cancel { reason: None },
                JobCommand::Redrive { reason: None },
                JobCommand::Discard { reason: None },
            ] {
                let refused = ledger
                    .job(CommandId::random(), job_id("a"), command.clone())
                    .await;
                assert!(
                    matches!(refused, Err(LedgerError::StreamTooNew { .. })),
                    "{command:?}: {refused:?}"
                );
                let batched = ledger
                    .batch(vec![(
                        CommandId::random(),
                        Command::Job(job_id("a"), command),
                    )])
                    .await;
                assert!(
                    matches!(batched[..], [Err(LedgerError::StreamTooNew { .. })]),
                    "{batched:?}"
                );
            }
            assert!(matches!(
                ledger.show(&job_id("a")).await,
                Err(LedgerError::StreamTooNew { .. })
            ));
        }
        assert_eq!(
            (log(&*store).await.len(), store.accounts(None, 10).await),
            before
        );
        on(&ledger, "b", external(40)).await;
    }
}

/// The other half of fault 28: corrupt bytes. They name the position, and stop their own stream only.
#[tokio::test]
async fn fault_28_corrupt_bytes_refuse_commands_and_name_the_position() {
    if !is_log_in_tables() {
        return;
    }
    let place = Place::new();
    let [ledger, _] = two_processes(&place, 1_000).await;
    on(&ledger, "a", external(40)).await;
    let store = place.store().await;
    let end = Event::Job(JobEvent::Failed(Failed { hold: None }));
    let stream = Stream::Job(job_id("a"));
    let mut append = Append::new(
        &stream,
        Expected::Exact(Revision::FIRST),
        &command_id("bad disk"),
        vec![end],
        None,
    );
    append.events[0].data = vec![0xff; 3];
    assert!(matches!(
        store.append(append).await,
        Ok(Appended::Committed { .. })
    ));
    for ledger in [&ledger, &place.ledger().await] {
        let refused = ledger
            .job(CommandId::random(), job_id("a"), failing())
            .await;
        let names =
            matches!(&refused, Err(LedgerError::Corrupt { position, .. }) if position.get() == 3);
        assert!(names, "{refused:?}");
    }
    assert_eq!(balance(&ledger).await, 960);
    on(&ledger, "b", external(40)).await;
}

/// Not in the list, and of its kind: a store that is unavailable has surely written nothing, and is not called unknown.
#[tokio::test]
async fn an_unavailable_store_is_told_apart_from_an_unknown_outcome() {
    use recoup::store::faulty::{Faults, FaultyStore};
    let place = Place::new();
    let plain = place.store().await;
    let down = Faults {
        unavailable: 1_000,
        ..Faults::default()
    };
    let ledger = ledger(Arc::new(FaultyStore::new(plain.clone(), down, 1)));
    let charge = JobCommand::Charge(Box::new(charge("acme", 40, policy(Mode::External, 1))));
    let refused = ledger.job(CommandId::random(), job_id("a"), charge).await;
    assert!(
        matches!(
            refused,
            Err(LedgerError::Store(StoreError::Unavailable { .. }))
        ),
        "{refused:?}"
    );
    assert_eq!(log(&*plain).await, Vec::new());
}
