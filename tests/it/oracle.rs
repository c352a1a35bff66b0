//! An independent oracle: what every balance and entry must be, from nothing but the commands that were accepted.
//!
//! A command is accepted if it was answered `Applied`. The oracle keeps them in a map, in the order of the revisions in their receipts, and
//! works out on its own what each moved. It knows no event, no fold and no state of the library: where the two disagree, one of them is wrong.
//!
//! [`Oracle::check`] holds the log and the store's figures against the prediction.

use std::collections::{BTreeMap, BTreeSet};

use recoup::codec::{Decoded, Event, Metadata, decode};
use recoup::job::Timer;
use recoup::store::RecordedEvent;
use recoup::{Command, CommandId, EventStore, FailureClass, JobCommand, Mode, Outcome};

use crate::stores::log;

/// (what, signed amount), in the order of the log.
type Entries = Vec<(&'static str, i64)>;

/// What was accepted so far.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// By stream: the accepted commands, by the revision that each led to.
    accepted: BTreeMap<String, BTreeMap<u64, Command>>,
    ids: BTreeSet<CommandId>,
    /// Commands that only left a contradiction on record.
    noted: BTreeSet<CommandId>,
    /// Commands whose outcome was unknown at least once: the log has to say whether they are there.
    unsettled: BTreeMap<CommandId, Command>,
}

/// What the accepted commands must have led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Prediction {
    /// By stream: its entries.
    entries: BTreeMap<String, Entries>,
    /// By account: balance and held.
    figures: BTreeMap<String, (i64, i64)>,
    /// By account: spent and held of the one month that all jobs are charged in.
    months: BTreeMap<String, (i64, i64)>,
}

impl Oracle {
    /// Takes note of an answer.
    pub(crate) fn hear(&mut self, id: &CommandId, command: &Command, outcome: &Outcome) {
        match outcome {
            Outcome::Applied(receipt) => self.accept(id, command, receipt.revision.get()),
            Outcome::Noted(_) => {
                self.noted.insert(id.clone());
            }
            Outcome::AlreadyApplied(_) | Outcome::Rejected { .. } => {}
        }
    }

    /// Takes note that a command got no answer: it may have been applied.
    pub(crate) fn lose(&mut self, id: &CommandId, command: &Command) {
        self.unsettled.insert(id.clone(), command.clone());
    }

    fn accept(&mut self, id: &CommandId, command: &Command, revision: u64) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        let stream = command.stream().name().as_str().to_owned();
        let before = self
            .accepted
            .entry(stream)
            .or_default()
            .insert(revision, command.clone());
        assert_eq!(
            before, None,
            "two commands were told that they led to revision {revision}"
        );
    }

    /// Holds the whole log and every figure of `store` against what was accepted.
    pub(crate) async fn check(mut self, store: &dyn EventStore) {
        let log = log(store).await;
        let caused = causes(&log);
        for (id, command) in std::mem::take(&mut self.unsettled) {
            if let Some(revision) = caused.get(&id)
                && !self.noted.contains(&id)
            {
                self.accept(&id, &command, *revision);
            }
        }
        for id in caused.keys() {
            let known = self.ids.contains(id) || self.noted.contains(id);
            assert!(known, "{id} is in the log, and nobody was told so");
        }
        for id in &self.ids {
            assert!(
                caused.contains_key(id),
                "{id} was told that it is applied, and is not in the log"
            );
        }
        let predicted = self.predict();
        let stored = read(store, &log).await;
        assert_eq!(stored, predicted);
        for entries in predicted.entries.values() {
            let count = |what| entries.iter().filter(|(kind, _)| *kind == what).count();
            assert!(count("refund") <= 1 && count("reclaim") <= 1, "{entries:?}");
        }
    }

    fn predict(&self) -> Prediction {
        let mut predicted = Prediction::default();
        for (stream, commands) in &self.accepted {
            let mut one = Story::default();
            for command in commands.values() {
                one.tell(command);
            }
            if one.account.is_empty() {
                continue;
            }
            let balance: i64 = one.entries.iter().map(|(_, amount)| amount).sum();
            let held = if one.is_refunded && one.is_live {
                one.cost
            } else {
                0
            };
            if one.cost > 0 {
                assert!(
                    balance == 0 || balance == -one.cost,
                    "net {balance} of {stream}"
                );
                let month = predicted.months.entry(one.account.clone()).or_default();
                month.0 -= balance;
                month.1 += held;
            }
            let figures = predicted.figures.entry(one.account).or_default();
            figures.0 += balance;
            figures.1 += held;
            predicted.entries.insert(stream.clone(), one.entries);
        }
        predicted
    }
}

/// One stream, retold from its accepted commands.
#[derive(Debug, Default)]
struct Story {
    account: String,
    cost: i64,
    is_external: bool,
    cap: u32,
    starts: u32,
    is_refunded: bool,
    is_live: bool,
    entries: Entries,
}

impl Story {
    fn tell(&mut self, command: &Command) {
        match command {
            Command::Grant(grant) => {
                self.account = grant.account.as_str().to_owned();
                self.entries.push(("grant", grant.amount.get()));
            }
            Command::Adjust(adjust) => {
                self.account = adjust.account.as_str().to_owned();
                self.entries.push(("adjustment", adjust.amount.get()));
            }
            Command::Limit(_) => {}
            Command::Job(_, command) => self.tell_job(command),
        }
    }

    fn tell_job(&mut self, command: &JobCommand) {
        match command {
            JobCommand::Charge(charge) => {
                self.account = charge.account.as_str().to_owned();
                self.cost = charge.cost.get();
                self.is_external = charge.policy.mode == Mode::External;
                self.cap = charge.policy.cap;
                self.is_live = true;
                self.entries.push(("charge", -self.cost));
            }
            JobCommand::Start { .. } => {
                self.starts += 1;
                self.is_live = true;
            }
            JobCommand::Extend { .. } => {}
            JobCommand::Fail { class, .. } => self.fail(*class),
            JobCommand::Expire {
                timer: Timer::LeaseUntil,
                ..
            } => self.fail(FailureClass::Retryable),
            JobCommand::Expire { .. } | JobCommand::Cancel { .. } => self.refund_for_good(),
            JobCommand::Succeed { .. } => {
                if self.is_refunded {
                    self.entries.push(("reclaim", -self.cost));
                }
                self.is_live = false;
            }
            JobCommand::Redrive { .. } => {
                self.starts = 0;
                self.is_live = true;
            }
            JobCommand::Discard { .. } => self.is_live = false,
        }
    }

    fn fail(&mut self, class: FailureClass) {
        self.refund_for_good();
        self.is_live =
            class == FailureClass::Retryable && !self.is_external && self.starts < self.cap;
    }

    fn refund_for_good(&mut self) {
        if !self.is_refunded {
            self.entries.push(("refund", self.cost));
        }
        self.is_refunded = true;
        self.is_live = false;
    }
}

/// By command id: the last revision that it caused. A command's events stand next to each other, in one stream.
fn causes(log: &[RecordedEvent]) -> BTreeMap<CommandId, u64> {
    let mut places: BTreeMap<CommandId, (&RecordedEvent, u64)> = BTreeMap::new();
    for event in log {
        let metadata = Metadata::parse(&event.metadata, event.position).expect("metadata is ours");
        let (last, count) = places.entry(metadata.command.clone()).or_insert((event, 0));
        let follows = last.stream == event.stream
            && last.revision.get() + (*count).min(1) == event.revision.get();
        assert!(
            follows,
            "{} has events apart from each other",
            metadata.command
        );
        (*last, *count) = (event, *count + 1);
    }
    places
        .into_iter()
        .map(|(id, (last, _))| (id, last.revision.get()))
        .collect()
}

/// Entries from the log's bytes, figures from the store.
async fn read(store: &dyn EventStore, log: &[RecordedEvent]) -> Prediction {
    let mut read = Prediction::default();
    for recorded in log {
        let Ok(Decoded::Event(event)) = decode(recorded) else {
            panic!("{recorded:?} is unreadable")
        };
        let what = match event.name() {
            "charged" => "charge",
            "refunded" => "refund",
            "reclaimed" => "reclaim",
            "granted" => "grant",
            "adjusted" => "adjustment",
            other => {
                let moved = event.posting().map_or(0, |posting| posting.amount);
                assert_eq!(moved, 0, "{other} moves no money");
                continue;
            }
        };
        let amount = event.posting().expect("an entry has an amount").amount;
        let is_of_account = matches!(event, Event::Account(_));
        assert_eq!(is_of_account, !recorded.stream.is_job());
        read.entries
            .entry(recorded.stream.as_str().to_owned())
            .or_default()
            .push((what, amount));
    }
    for (account, state) in store
        .accounts(None, usize::MAX)
        .await
        .expect("accounts are readable")
    {
        let who = account.as_str().to_owned();
        let months: Vec<_> = state.months.values().collect();
        if let [month] = months[..] {
            read.months.insert(who.clone(), (month.spent, month.held));
        } else {
            assert!(
                months.is_empty(),
                "every job is charged in one month: {months:?}"
            );
        }
        // An account that only ever had limits set has no entry, and the oracle has not heard of it.
        let has_entries = state.balance != 0 || state.held != 0 || read.has_entries_of(log, &who);
        if has_entries {
            read.figures.insert(who, (state.balance, state.held));
        }
    }
    read
}

impl Prediction {
    fn has_entries_of(&self, log: &[RecordedEvent], who: &str) -> bool {
        log.iter().any(|recorded| match decode(recorded) {
            Ok(Decoded::Event(event)) => event
                .posting()
                .is_some_and(|posting| posting.account.as_str() == who),
            _ => false,
        })
    }
}
