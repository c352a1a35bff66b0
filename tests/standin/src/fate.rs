//! What is to go wrong: a fate for every request, from a queue or from a script.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// What becomes of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendFate {
    /// As the server does it.
    Fine,
    /// Written; then every connection to the node is cut instead of an answer.
    CommittedThenCut,
    /// Written, and never answered.
    CommittedThenSilent,
    /// Written, but the server's own wait for it ran out.
    CommittedThenAborted,
    /// Written or found, and answered without a position, as the server does for a repeat whose event it cannot read.
    CommittedWithoutPosition,
    /// Not answered, and written when [`Standin::release`](crate::Standin::release) is called.
    Held,
    /// The same, and answered then.
    Delayed,
    /// The same as `Held`, and taken by the leader's writer, which waits for the other nodes: a repeat is not answered either, anything else on the stream is a conflict.
    Unreplicated,
    /// The server's own wait ran out; written when [`Standin::release`](crate::Standin::release) is called.
    HeldThenAborted,
    /// Not written; the server's own wait ran out.
    Aborted,
    /// Not written; every connection to the node is cut.
    Cut,
    /// Not written: the node says that another one leads.
    NotLeader(Leader),
    /// Not written: the node is starting.
    NotReady,
    /// Not written: the caller may not.
    Denied,
}

/// What a node that does not lead says about the one that does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leader {
    /// Where it is, or was.
    At {
        /// Its host.
        host: String,
        /// Its port.
        port: u16,
    },
    /// Only that it is not this one.
    Unnamed,
}

/// What becomes of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFate {
    /// As the server does it.
    Fine,
    /// A pause before each event.
    Slow(Duration),
    /// So many events, then nothing: neither an event nor an end.
    Stalled(usize),
    /// So many events, then every connection to the node is cut.
    CutAfter(usize),
    /// Looks at so many events of the log or the stream and ends cleanly, whether it found one or not.
    ShortOf(usize),
    /// The server's own wait ran out.
    Aborted,
    /// The node says that another one leads.
    NotLeader(Leader),
    /// The node is starting.
    NotReady,
}

/// What becomes of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionFate {
    /// As the server does it.
    Fine,
    /// So many messages, the confirmation among them, then a clean end.
    EndedAfter(usize),
    /// So many messages, of which the last may get lost, then every connection to the node is cut.
    CutAfter(usize),
}

type Script<F> = Box<dyn FnMut(&str) -> F + Send>;

/// Fates of one kind of request: the queue first, then the script.
pub(crate) struct Fates<F> {
    queue: VecDeque<F>,
    script: Script<F>,
}

impl<F> Fates<F> {
    pub(crate) fn new(script: impl FnMut(&str) -> F + Send + 'static) -> Self {
        Self {
            queue: VecDeque::new(),
            script: Box::new(script),
        }
    }

    pub(crate) fn queue(&mut self, fates: impl IntoIterator<Item = F>) {
        self.queue.extend(fates);
    }

    pub(crate) fn draw(&mut self, stream: &str) -> F {
        let next = self.queue.pop_front();
        next.unwrap_or_else(|| (self.script)(stream))
    }
}

impl<F: fmt::Debug> fmt::Debug for Fates<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, script: _ } = self;
        f.debug_struct("Fates")
            .field("queue", queue)
            .finish_non_exhaustive()
    }
}
