//! Every command, from eight callers over two stores on one ledger, in random order, duplicated, with answers that get lost.
//!
//! Whatever happens in between, afterwards every job has net 0 or −cost, at most one refund and one reclaim, and every balance and entry
//! equals what the oracle makes of the accepted commands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proptest::prelude::*;
use recoup::store::StoreError;
use recoup::store::faulty::{Faults, FaultyStore};
use recoup::{
    Clock, Command, CommandId, Grant, JobCommand, Ledger, LedgerError, ManualClock, Outcome,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::plan::{Act, CALLERS, Planned, Sent, job_name, of_caller, plan};
use crate::oracle::Oracle;
use crate::stores::{Place, ledger, tries};
use crate::values::{account_id, command_id, cost, grant_id, job_id};

/// How often a caller repeats a command whose outcome is unknown, or whose store was unavailable.
const PATIENCE: u32 = 200;

struct Caller {
    ledger: Ledger,
    clock: ManualClock,
    oracle: Arc<Mutex<Oracle>>,
}

impl Caller {
    fn oracle(&self) -> std::sync::MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, planned: Planned) {
        match planned.act {
            Act::Send(Sent { id, command }) => {
                for _ in 0..=planned.repeats {
                    self.send(&id, &command).await;
                }
            }
            Act::RunOut(job) => self.run_out(job).await,
            Act::Wait { seconds } => self.clock.advance(Duration::from_secs(seconds)),
        }
    }

    /// Carries out a list in calls of up to `size` commands; what got no answer is repeated on its own, in order.
    async fn carry_out_in_batches(&self, acts: Vec<Planned>, size: usize) {
        let mut waiting: Vec<Sent> = Vec::new();
        for planned in acts {
            match planned.act {
                Act::Send(sent) => {
                    let copies = usize::from(planned.repeats) + 1;
                    waiting.extend(std::iter::repeat_n(sent, copies));
                    if waiting.len() >= size {
                        self.send_in_one_call(std::mem::take(&mut waiting)).await;
                    }
                }
                Act::RunOut(_) | Act::Wait { .. } => self.carry_out(planned).await,
            }
        }
        self.send_in_one_call(waiting).await;
    }

    async fn send_in_one_call(&self, sent: Vec<Sent>) {
        let commands = sent
            .iter()
            .map(|Sent { id, command }| (id.clone(), command.clone()));
        let answers = self.ledger.batch(commands.collect()).await;
        for (Sent { id, command }, answer) in sent.into_iter().zip(answers) {
            match answer {
                Ok(outcome) => self.check(&id, &command, &outcome),
                Err(LedgerError::OutcomeUnknown { .. }) => {
                    self.oracle().lose(&id, &command);
                    self.send(&id, &command).await;
                }
                Err(LedgerError::Store(StoreError::Unavailable { .. })) => {
                    self.send(&id, &command).await
                }
                Err(error) => panic!("{command:?}: {error}"),
            }
        }
    }

    /// Repeats until there is an answer, as a service does.
    async fn send(&self, id: &CommandId, command: &Command) {
        for _ in 0..PATIENCE {
            match self.ledger.execute(id.clone(), command.clone()).await {
                Ok(outcome) => return self.check(id, command, &outcome),
                Err(LedgerError::OutcomeUnknown { .. }) => self.oracle().lose(id, command),
                Err(LedgerError::Store(StoreError::Unavailable { .. })) => {}
                Err(error) => panic!("{command:?}: {error}"),
            }
        }
        panic!("{command:?} got no answer in {PATIENCE} tries");
    }

    fn check(&self, id: &CommandId, command: &Command, outcome: &Outcome) {
        self.oracle().hear(id, command, outcome);
        if let Command::Job(_, JobCommand::Succeed { .. }) = command
            && outcome.is_done()
        {
            let state = outcome
                .receipt()
                .and_then(|receipt| receipt.job.as_ref())
                .map(|job| job.state);
            assert_eq!(
                state,
                Some("delivered"),
                "a result is handed over only by a delivered job"
            );
        }
    }

    /// What the due loop does, with the id that it derives.
    async fn run_out(&self, job: u8) {
        const SCOPE: Uuid = uuid::uuid!("7c1e2a52-9d0f-5b7f-8f5f-0f3c8f3b6a11");
        let job = job_id(&job_name(job));
        let (state, _) = self.ledger.show(&job).await.expect("a stream is readable");
        let Some((timer, armed_at, deadline)) = state.recorded().and_then(|job| job.work.timer())
        else {
            return;
        };
        if self.clock.now() < deadline {
            self.clock.set(deadline);
        }
        let parts: [&[u8]; 3] = [
            job.as_str().as_bytes(),
            timer.name().as_bytes(),
            &armed_at.get().to_le_bytes(),
        ];
        let id = CommandId::derived(SCOPE, &parts);
        self.send(
            &id,
            &Command::Job(job, JobCommand::Expire { timer, armed_at }),
        )
        .await;
    }
}

/// Carries a plan out and checks what it came to; the first `batching` callers send their commands in batches.
async fn carry_out(plan: &[Planned], batching: usize, faults: Faults, seed: u64) {
    let place = Place::new();
    let plain = place.store().await;
    let oracle = Arc::new(Mutex::new(Oracle::default()));
    // Two stores and two caches on one ledger, as in two processes, each with its own losses.
    let mut ledgers = Vec::new();
    for process in 0..2 {
        let faulty = FaultyStore::new(place.store().await, faults, seed.wrapping_add(process));
        ledgers.push(ledger(Arc::new(faulty)));
    }
    let opening = Grant {
        account: account_id("rich"),
        grant: grant_id("opening"),
        amount: cost(10_000),
    };
    let first = Caller {
        ledger: ledger(plain.clone()),
        clock: place.clock.clone(),
        oracle: Arc::clone(&oracle),
    };
    first
        .send(&command_id("opening"), &Command::Grant(opening))
        .await;
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut tasks = JoinSet::new();
    for number in 0..CALLERS {
        let acts = of_caller(plan, number);
        let (ledger, clock) = (ledgers[number % 2].clone(), place.clock.clone());
        let caller = Caller {
            ledger,
            clock,
            oracle: Arc::clone(&oracle),
        };
        let barrier = Arc::clone(&barrier);
        tasks.spawn(async move {
            barrier.wait().await;
            if number < batching {
                return caller.carry_out_in_batches(acts, 2 + number).await;
            }
            for planned in acts {
                caller.carry_out(planned).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("a caller does not panic");
    }
    // Who has seen nothing of all this reads every stream from its bytes.
    let fresh = ledger(plain.clone());
    for job in 0..4 {
        fresh
            .show(&job_id(&job_name(job)))
            .await
            .expect("every stream is legal");
    }
    let oracle = std::mem::take(&mut *oracle.lock().unwrap_or_else(PoisonError::into_inner));
    oracle.check(&*plain).await;
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

/// Seeds are nothing to shrink, and neither is a race: few tries.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: tries(cases),
        max_shrink_iters: 30,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

const SOME_LOST: Faults = Faults {
    lost_after: 120,
    lost_before: 80,
    unavailable: 30,
};

/// So much that many commands end in an unknown outcome, and are repeated as commands.
const MOST_LOST: Faults = Faults {
    lost_after: 500,
    lost_before: 350,
    unavailable: 0,
};

proptest! {
    #![proptest_config(config(80))]

    #[test]
    fn any_interleaving_equals_the_oracle(plan in plan(40..120), seed in any::<u64>()) {
        run(carry_out(&plan, 0, Faults::default(), seed));
    }

    #[test]
    fn any_interleaving_with_lost_answers_equals_the_oracle(plan in plan(40..120), seed in any::<u64>()) {
        run(carry_out(&plan, 0, SOME_LOST, seed));
    }

    #[test]
    fn any_interleaving_of_batches_equals_the_oracle(plan in plan(40..120), seed in any::<u64>()) {
        run(carry_out(&plan, 6, Faults::default(), seed));
    }

    #[test]
    fn any_interleaving_of_batches_with_lost_answers_equals_the_oracle(plan in plan(40..120), seed in any::<u64>()) {
        run(carry_out(&plan, 6, SOME_LOST, seed));
    }
}

proptest! {
    #![proptest_config(config(8))]

    #[test]
    fn any_interleaving_with_most_answers_lost_equals_the_oracle(plan in plan(20..40), batching in 0..CALLERS, seed in any::<u64>()) {
        run(carry_out(&plan, batching, MOST_LOST, seed));
    }
}
