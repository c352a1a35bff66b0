//! The connection: a client that is built anew when it is of no more use.
//!
//! The official client (1.2) ends for good after one failed connect, never asks again who leads once it has chosen a node, and sends a deadline without
//! keeping it. So every call is bounded here, and what says that a client is lost takes it away from everybody: whoever asks next connects anew, one at a
//! time, with growing, jittered pauses, and the others wait for that one. A client that was lost is only let go of; calls that still wait on it have their own bounds.
//!
//! A call that had no answer in time says nothing by itself: the server may be slow. If no other call of the same client had one either since it began, the
//! client is lost as well.
//!
//! Bounds: [`Options::connect_within`] until a client is there, [`Options::answer_within`] for an answer.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kurrentdb::{Client, ClientSettings, NodePreference};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use uuid::Uuid;

use super::error::{Meaning, meaning, unavailable};
use super::{OpenError, Options};
use crate::store::StoreError;

/// How long the client waits between two looks for a node, in milliseconds, where the connection string does not say. It waits as long before its first
/// connection, too: with its own default of 500 every command line would take half a second.
const DISCOVERY_INTERVAL: (&str, &str) = ("discoveryInterval", "50");

const FIRST_PAUSE: Duration = Duration::from_millis(25);
const MAX_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Link {
    settings: ClientSettings,
    connect_within: Duration,
    answer_within: Duration,
    state: Mutex<State>,
    /// Held by the one who connects.
    connecting: tokio::sync::Mutex<()>,
}

struct State {
    client: Option<Client>,
    /// Which client it is, or was, counted from the first.
    generation: u64,
    /// Attempts and clients that failed since the last answer.
    failures: u32,
    /// When the next attempt may begin.
    not_before: Instant,
    /// When any call of this client was last answered.
    answered: Instant,
    /// Why there is no client.
    cause: String,
}

/// A client for one call.
pub(super) struct Lent {
    pub(super) client: Client,
    generation: u64,
    since: Instant,
}

/// How a call ended that gave no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The server said something that is not one, or the connection broke.
    Error(kurrentdb::Error),
    /// There was nothing in time.
    Silence,
}

impl State {
    fn fail(&mut self, cause: &str) {
        self.client = None;
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(8));
        let pause = doubled.min(MAX_PAUSE);
        // Half of it is fixed: processes that lost one server do not come back in step.
        let random = (Uuid::new_v4().as_u128() & 0xff) as u32;
        self.not_before = Instant::now() + pause / 2 + pause / 2 * random / 255;
        if self.failures == 0 {
            tracing::warn!(cause, "no connection to KurrentDB");
        } else {
            tracing::debug!(self.failures, cause, "still no connection to KurrentDB");
        }
        self.failures = self.failures.saturating_add(1);
        cause.clone_into(&mut self.cause);
    }
}

/// The connection string with how long the client waits between two looks.
fn with_interval(connection: &str) -> String {
    let (name, value) = DISCOVERY_INTERVAL;
    let (base, query) = connection.split_once('?').unwrap_or((connection, ""));
    let is_named = |part: &str| {
        part.split_once('=')
            .is_some_and(|(named, _)| named.eq_ignore_ascii_case(name))
    };
    if query.split('&').any(is_named) {
        return connection.to_owned();
    }
    let own = format!("{name}={value}");
    let query: Vec<_> = query
        .split('&')
        .filter(|part| !part.is_empty())
        .chain([own.as_str()])
        .collect();
    format!("{base}?{}", query.join("&"))
}

impl Link {
    pub(super) fn new(options: &Options) -> Result<Self, OpenError> {
        let connection = |why: String| OpenError::Connection { why };
        let parsed = with_interval(&options.connection).parse();
        let settings: ClientSettings =
            parsed.map_err(|error: kurrentdb::ClientSettingsParseError| {
                // Some of its messages are the string itself, with the password.
                let message = error.message();
                let is_told = !message.contains("://");
                let message = if is_told { message } else { "no such address" };
                connection(format!("cannot be read: {message}"))
            })?;
        // With this preference, and no other, every request asks for the leader.
        if settings.node_preference() != NodePreference::Leader {
            let why = "asks for another node than the leader: what decides is read there";
            return Err(connection(why.to_owned()));
        }
        if settings.max_discover_attempts() < 2 {
            let why = "has maxDiscoverAttempts below 2, with which the client never connects";
            return Err(connection(why.to_owned()));
        }
        let now = Instant::now();
        Ok(Self {
            settings,
            connect_within: options.connect_within,
            answer_within: options.answer_within,
            state: Mutex::new(State {
                client: None,
                generation: 0,
                failures: 0,
                not_before: now,
                answered: now,
                cause: "not connected yet".to_owned(),
            }),
            connecting: tokio::sync::Mutex::new(()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when a call that begins now may wait for a client.
    pub(super) fn patience(&self) -> Instant {
        Instant::now() + self.connect_within
    }

    pub(super) const fn answer_within(&self) -> Duration {
        self.answer_within
    }

    fn lend(&self) -> Option<Lent> {
        let state = self.state();
        Some(Lent {
            client: state.client.clone()?,
            generation: state.generation,
            since: Instant::now(),
        })
    }

    /// A client that has a server behind it; waits for one until `until`.
    pub(super) async fn client(&self, until: Instant) -> Result<Lent, StoreError> {
        if let Some(lent) = self.lend() {
            return Ok(lent);
        }
        loop {
            let Ok(_one) = timeout_at(until, self.connecting.lock()).await else {
                return Err(self.unavailable());
            };
            if let Some(lent) = self.lend() {
                return Ok(lent);
            }
            let begin = self.state().not_before;
            if begin >= until {
                sleep_until(until).await;
                return Err(self.unavailable());
            }
            sleep_until(begin).await;
            match timeout_at(until, self.connect()).await {
                Ok(Ok(client)) => self.connected(client),
                Ok(Err(error)) => self.failed(&error.to_string()),
                Err(_) => self.failed("no server answered in time"),
            }
        }
    }

    async fn connect(&self) -> Result<Client, kurrentdb::Error> {
        // The machine's certificates are read from the disk each time.
        let (runtime, settings) = (tokio::runtime::Handle::current(), self.settings.clone());
        let made =
            tokio::task::spawn_blocking(move || Client::with_runtime_handle(runtime, settings));
        let client = match made.await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(kurrentdb::Error::InitializationError(error.to_string())),
            Err(died) => return Err(kurrentdb::Error::InitializationError(died.to_string())),
        };
        client.server_info().await?;
        Ok(client)
    }

    fn connected(&self, client: Client) {
        let mut state = self.state();
        state.client = Some(client);
        state.generation += 1;
        state.answered = Instant::now();
        tracing::debug!(generation = state.generation, "connected to KurrentDB");
    }

    fn failed(&self, cause: &str) {
        self.state().fail(cause);
    }

    fn lost(&self, lent: &Lent, cause: &str) {
        let mut state = self.state();
        // Of many calls that break together the first one counts.
        if state.generation == lent.generation && state.client.is_some() {
            state.fail(cause);
        }
    }

    fn answered(&self, lent: &Lent) {
        let mut state = self.state();
        if state.generation == lent.generation {
            state.answered = Instant::now();
            state.failures = 0;
        }
    }

    /// Whether nobody who shares the client has had an answer since this call began.
    fn is_silent(&self, lent: &Lent) -> bool {
        let state = self.state();
        state.generation == lent.generation && state.answered <= lent.since
    }

    fn unavailable(&self) -> StoreError {
        unavailable(&self.state().cause)
    }

    /// Waits for one answer, and takes note of what its absence says about the client.
    pub(super) async fn ask<T>(
        &self,
        lent: &Lent,
        call: impl Future<Output = Result<T, kurrentdb::Error>>,
    ) -> Result<T, NoAnswer> {
        match timeout(self.answer_within, call).await {
            Ok(Ok(answer)) => {
                self.answered(lent);
                Ok(answer)
            }
            Ok(Err(error)) => {
                match meaning(&error) {
                    Meaning::Lost => self.lost(lent, &error.to_string()),
                    Meaning::Late | Meaning::Never(_) => self.answered(lent),
                }
                Err(NoAnswer::Error(error))
            }
            Err(_) => {
                if self.is_silent(lent) {
                    self.lost(lent, "the server does not answer");
                }
                Err(NoAnswer::Silence)
            }
        }
    }

    /// What a refusal says that asking again cannot change.
    pub(super) fn never(&self, no_answer: &NoAnswer) -> Option<StoreError> {
        match no_answer {
            NoAnswer::Error(error) => match meaning(error) {
                Meaning::Never(error) => Some(error),
                Meaning::Lost | Meaning::Late => None,
            },
            NoAnswer::Silence => None,
        }
    }
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Silence => f.write_str("no answer in time"),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Link")
            .field("generation", &state.generation)
            .field("is_connected", &state.client.is_some())
            .field("failures", &state.failures)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::with_interval;

    #[test]
    fn a_connection_string_says_how_long_a_look_waits() {
        let cases = [
            ("esdb://h:2113", "esdb://h:2113?discoveryInterval=50"),
            (
                "esdb://h/?tls=false",
                "esdb://h/?tls=false&discoveryInterval=50",
            ),
            ("esdb://h?", "esdb://h?discoveryInterval=50"),
            (
                "esdb://h?discoveryinterval=9&tls=false",
                "esdb://h?discoveryinterval=9&tls=false",
            ),
        ];
        for (given, taken) in cases {
            assert_eq!(with_interval(given), taken);
        }
    }
}
