//! What a loop says of itself, and what its supervisor says of it.
//!
//! A *beat* is a sign of life: some work was done, or a look showed that there is none. A loop that has not beaten for as long as it
//! promised to is taken for dead, whatever it may be waiting for. A *success* is a whole round that did what it was to do: it ends every
//! complaint about the loop.
//!
//! Lock rule: one short mutex for each loop, held over no wait and never together with another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// Where a loop is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was started and has not beaten yet.
    Starting,
    /// It runs.
    Running,
    /// It failed, and is started again after a pause.
    Restarting,
    /// It met what time does not heal; it is looked at again now and then.
    Stopped,
    /// It ended because it was told to.
    Ended,
}

/// One loop's status, shared between the loop, its supervisor and whoever asks.
#[derive(Debug)]
pub struct LoopStatus {
    name: &'static str,
    silence: Duration,
    facts: Mutex<Facts>,
}

#[derive(Debug)]
struct Facts {
    state: State,
    restarts: u64,
    last_beat: Instant,
    last_success: Option<Instant>,
    detail: String,
    error: Option<String>,
}

/// A loop at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoopView {
    /// Its name.
    pub name: &'static str,
    /// Where it is in its life.
    pub state: State,
    /// How often it was started again.
    pub restarts: u64,
    /// How long ago it beat; from its start while it has not.
    pub last_beat_age_seconds: f64,
    /// How long ago a round of it was done; none if none ever was.
    pub last_success_age_seconds: Option<f64>,
    /// How long it may be silent.
    pub silence_seconds: f64,
    /// What it is at, in its own words.
    pub detail: String,
    /// What went wrong, if nothing went well since.
    pub error: Option<String>,
}

impl LoopView {
    /// Whether it ended because it was told to.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Why it must not be relied upon; none if it may.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let why = self.error.as_deref().unwrap_or("no reason known");
        match self.state {
            State::Running if self.last_beat_age_seconds <= self.silence_seconds => None,
            State::Running => Some(format!(
                "loop {} gave no sign of life for {:.0} s: {why}",
                self.name, self.last_beat_age_seconds
            )),
            State::Starting => Some(match &self.error {
                None => format!("loop {} has not begun yet", self.name),
                Some(why) => format!("loop {} has not begun yet: {why}", self.name),
            }),
            State::Restarting => Some(format!("loop {} failed: {why}", self.name)),
            State::Stopped => Some(format!("loop {} is stopped: {why}", self.name)),
            State::Ended => Some(format!("loop {} has ended", self.name)),
        }
    }
}

impl LoopStatus {
    pub(super) fn new(name: &'static str, silence: Duration) -> Arc<Self> {
        Arc::new(Self {
            name,
            silence,
            facts: Mutex::new(Facts {
                state: State::Starting,
                restarts: 0,
                last_beat: Instant::now(),
                last_success: None,
                detail: String::new(),
                error: None,
            }),
        })
    }

    /// The loop's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A sign of life.
    pub fn beat(&self) {
        let mut facts = self.facts();
        facts.last_beat = Instant::now();
        if matches!(facts.state, State::Starting | State::Restarting) {
            facts.state = State::Running;
        }
    }

    /// A whole round was done. It is a sign of life too, and ends every complaint.
    pub fn succeed(&self) {
        let mut facts = self.facts();
        let now = Instant::now();
        facts.last_beat = now;
        facts.last_success = Some(now);
        facts.error = None;
        facts.state = State::Running;
    }

    /// Something went wrong that the loop waits out by itself. No sign of life: if it lasts, the loop is taken for dead.
    pub fn trouble(&self, error: impl std::fmt::Display) {
        self.facts().error = Some(error.to_string());
    }

    /// What the loop is at, for people.
    pub fn detail(&self, text: impl Into<String>) {
        self.facts().detail = text.into();
    }

    pub(super) fn fail(&self, is_lasting: bool, error: &str) {
        let mut facts = self.facts();
        facts.state = if is_lasting {
            State::Stopped
        } else {
            State::Restarting
        };
        facts.error = Some(error.to_owned());
    }

    pub(super) fn restart(&self) {
        let mut facts = self.facts();
        facts.restarts = facts.restarts.saturating_add(1);
        facts.last_beat = Instant::now();
    }

    pub(super) fn end(&self, error: Option<String>) {
        let mut facts = self.facts();
        facts.state = State::Ended;
        facts.error = error;
    }

    /// The loop as it is now.
    #[must_use]
    pub fn view(&self) -> LoopView {
        let facts = self.facts();
        LoopView {
            name: self.name,
            state: facts.state,
            restarts: facts.restarts,
            last_beat_age_seconds: facts.last_beat.elapsed().as_secs_f64(),
            last_success_age_seconds: facts.last_success.map(|at| at.elapsed().as_secs_f64()),
            silence_seconds: self.silence.as_secs_f64(),
            detail: facts.detail.clone(),
            error: facts.error.clone(),
        }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        // Each change is whole by itself: what a panicking holder left is as good as any.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
