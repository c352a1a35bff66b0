//! The signal that something was appended, for what other processes append: the end of the log is looked at from time to time, while somebody waits.
//!
//! Not a subscription: the client's spins when its stream ends cleanly, and a signal that is late by a look is good enough. The task holds nothing that
//! keeps the log open.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;

use super::{Shared, keep_going};

pub(super) fn start(shared: &Arc<Shared>) {
    let (shared, every) = (Arc::downgrade(shared), shared.options.poll_every);
    keep_going("looking for the end of the log", move || {
        look(shared.clone(), every)
    });
}

async fn look(shared: Weak<Shared>, every: Duration) {
    loop {
        sleep(every).await;
        let Some(shared) = Weak::upgrade(&shared) else {
            return;
        };
        if shared.head.receiver_count() > 0 {
            // What is wrong with the server is told to who asks it for something.
            shared.head_position().await.ok();
        }
    }
}
