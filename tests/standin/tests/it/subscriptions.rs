//! Subscriptions, as far as a client of 1.2 can follow them: never to a clean end.

use kurrentdb::{
    StreamPosition, StreamState, SubscribeToAllOptions, SubscribeToStreamOptions, Subscription,
    SubscriptionEvent,
};
use recoup_kurrentdb_standin::{Standin, SubscriptionFate};

use crate::world::{append, bounded, client_of, of};

const EMPTY: StreamState = StreamState::NoStream;

/// What comes next, in a word.
async fn next(subscription: &mut Subscription) -> String {
    let next = bounded("a message", subscription.next_subscription_event()).await;
    match next.expect("it is not cut") {
        SubscriptionEvent::Confirmed(_) => "confirmed".to_owned(),
        SubscriptionEvent::EventAppeared(event) => {
            let event = event.get_original_event();
            format!("{}@{}", event.stream_id(), event.revision)
        }
        SubscriptionEvent::Checkpoint(_) => "checkpoint".to_owned(),
        SubscriptionEvent::CaughtUp(_) => "caught up".to_owned(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn a_subscriber_catches_up_and_is_fed() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "a", EMPTY, &[1, 2]).await.expect("new");
    append(&client, "b", EMPTY, &[3]).await.expect("new");
    let options = SubscribeToStreamOptions::default().start_from(StreamPosition::Position(0));
    let mut one = bounded("a subscription", client.subscribe_to_stream("a", &options)).await;
    // It begins behind the revision that it is given.
    for expected in ["confirmed", "a@1", "caught up"] {
        assert_eq!(next(&mut one).await, expected);
    }
    let options = SubscribeToAllOptions::default().filter(of("b").max(4));
    let mut all = bounded("a subscription", client.subscribe_to_all(&options)).await;
    // The server has three events of its own, "a" two: the fourth that is looked at is told, and later the eighth.
    for expected in ["confirmed", "checkpoint", "b@0", "caught up"] {
        assert_eq!(next(&mut all).await, expected);
    }
    append(&client, "a", StreamState::StreamRevision(1), &[4])
        .await
        .expect("it is there");
    append(&client, "b", StreamState::StreamRevision(0), &[5])
        .await
        .expect("it is there");
    assert_eq!(next(&mut one).await, "a@2");
    assert_eq!(next(&mut all).await, "b@1");
    assert_eq!(next(&mut all).await, "checkpoint");
    assert_eq!(standin.requests().subscriptions, 2);
}

#[tokio::test]
async fn a_subscription_is_cut_on_command() {
    let standin = Standin::start().await;
    let client = client_of(&standin);
    append(&client, "a", EMPTY, &[1, 2]).await.expect("new");
    standin.fail_subscriptions([SubscriptionFate::CutAfter(2)]);
    let options = SubscribeToStreamOptions::default().start_from(StreamPosition::Start);
    let mut one = bounded("a subscription", client.subscribe_to_stream("a", &options)).await;
    let mut messages = 0;
    while let Ok(_message) = bounded("a message or the cut", one.next_subscription_event()).await {
        messages += 1;
    }
    assert!(messages <= 2, "{messages} messages before the cut");
}
