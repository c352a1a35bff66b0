//! The load: lifecycles from many callers, with latencies per command.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use recoup::ids::CommandId;
use recoup::{
    Attempt, Command, Cost, FailureClass, Grant, GrantId, JobCommand, JobId, Kind, Ledger, Limit,
    Outcome, PriceSnapshot,
};

/// Commands per batch call.
pub(super) const BATCH: u32 = 1_500;

/// Events of one lifecycle: charged; attempt failed, refunded, failed; delivered, reclaimed.
const EVENTS_PER_LIFECYCLE: u64 = 6;

/// Which accounts pay.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// All of them, in turn.
    Spread { accounts: u32 },
    /// One.
    Hot,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) shape: Shape,
    pub(super) lifecycles: u32,
    pub(super) callers: u32,
    /// The number of the first job: a ledger may have had a load before.
    pub(super) first: u32,
}

/// What a load came to.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) lifecycles: u64,
    pub(super) events: u64,
    pub(super) elapsed: Duration,
    /// Per call, in microseconds.
    pub(super) latency: Histogram<u64>,
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    // 1 µs to 60 s, three digits.
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}

fn record(latency: &mut Histogram<u64>, since: Instant) {
    latency.saturating_record(u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX));
}

impl Load {
    fn accounts(self) -> u32 {
        match self.shape {
            Shape::Spread { accounts } => accounts,
            Shape::Hot => 1,
        }
    }

    /// Gives every account credit for all of the load, and a cap, so that both limits are checked.
    pub(super) async fn fund(self, ledger: &Ledger) -> anyhow::Result<()> {
        let everything = i64::from(self.lifecycles.max(1)) * 40;
        for number in 0..self.accounts() {
            let account = super::account(number);
            let grant = GrantId::new("bench")?;
            let amount = Cost::new(everything)?;
            let outcome = ledger
                .grant(
                    CommandId::random(),
                    Grant {
                        account: account.clone(),
                        grant,
                        amount,
                    },
                )
                .await?;
            ensure!(outcome.is_done(), "the grant was refused: {outcome:?}");
            let monthly_cap = Some(Some(everything));
            let limit = Limit {
                account,
                floor: None,
                monthly_cap,
            };
            ensure!(
                ledger.limit(CommandId::random(), limit).await?.is_done(),
                "no limit"
            );
        }
        Ok(())
    }

    fn lifecycle(self, ledger: &Ledger, number: u32) -> anyhow::Result<(JobId, [JobCommand; 3])> {
        let cost = Cost::new(40)?;
        let charge = ledger.charge_of(
            super::account(number % self.accounts()),
            Kind::new("bench")?,
            cost,
            PriceSnapshot::flat(cost),
            None,
        )?;
        let attempt = Attempt::FIRST;
        let fail = JobCommand::Fail {
            attempt,
            class: FailureClass::Retryable,
            reason: None,
        };
        let succeed = JobCommand::Succeed {
            attempt,
            result: None,
        };
        let job = JobId::new(format!("job-{:09}", self.first.saturating_add(number)))?;
        Ok((job, [JobCommand::Charge(Box::new(charge)), fail, succeed]))
    }

    /// Runs `work` for every number below `count`, each by the next free one of the callers.
    async fn share<F>(
        self,
        count: u32,
        work: impl Fn(u32) -> F + Send + Sync + 'static,
    ) -> anyhow::Result<(Duration, Histogram<u64>)>
    where
        F: Future<Output = anyhow::Result<Vec<Instant>>> + Send,
    {
        let (next, work) = (Arc::new(AtomicU32::new(0)), Arc::new(work));
        let begin = Instant::now();
        let callers: Vec<_> = (0..self.callers)
            .map(|_| {
                let (next, work) = (Arc::clone(&next), Arc::clone(&work));
                tokio::spawn(async move {
                    let mut latency = histogram()?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return Ok::<_, anyhow::Error>(latency);
                        }
                        let marks = work(number).await?;
                        for pair in marks.windows(2) {
                            let call = pair[1].duration_since(pair[0]);
                            let micros = u64::try_from(call.as_micros()).unwrap_or(u64::MAX);
                            latency.saturating_record(micros);
                        }
                    }
                })
            })
            .collect();
        let mut latency = histogram()?;
        for caller in callers {
            latency.add(caller.await.context("a caller died")??)?;
        }
        Ok((begin.elapsed(), latency))
    }

    /// Every caller carries lifecycles out, command by command.
    pub(super) async fn run(self, ledger: &Ledger) -> anyhow::Result<Measured> {
        let ledger = ledger.clone();
        let one = move |number| {
            let ledger = ledger.clone();
            async move {
                let (job, commands) = self.lifecycle(&ledger, number)?;
                let mut marks = vec![Instant::now()];
                for command in commands {
                    let outcome = ledger
                        .job(CommandId::random(), job.clone(), command)
                        .await?;
                    ensure!(
                        matches!(outcome, Outcome::Applied(_)),
                        "not applied: {outcome:?}"
                    );
                    marks.push(Instant::now());
                }
                Ok(marks)
            }
        };
        let (elapsed, latency) = self.share(self.lifecycles, one).await?;
        let lifecycles = u64::from(self.lifecycles);
        let (operations, events) = (lifecycles * 3, lifecycles * EVENTS_PER_LIFECYCLE);
        Ok(Measured {
            operations,
            lifecycles,
            events,
            elapsed,
            latency,
        })
    }

    /// One caller sends the same lifecycles through the batch call.
    pub(super) async fn run_batches(self, ledger: &Ledger) -> anyhow::Result<Measured> {
        let mut latency = histogram()?;
        let begin = Instant::now();
        let numbers: Vec<u32> = (0..self.lifecycles).collect();
        for part in numbers.chunks((BATCH / 3) as usize) {
            let call = Instant::now();
            let mut commands = Vec::with_capacity(part.len() * 3);
            for &number in part {
                let (job, three) = self.lifecycle(ledger, number)?;
                let of_job = |command| (CommandId::random(), Command::Job(job.clone(), command));
                commands.extend(three.into_iter().map(of_job));
            }
            for outcome in ledger.batch(commands).await {
                let outcome = outcome?;
                ensure!(
                    matches!(outcome, Outcome::Applied(_)),
                    "not applied: {outcome:?}"
                );
            }
            record(&mut latency, call);
        }
        let lifecycles = u64::from(self.lifecycles);
        Ok(Measured {
            operations: lifecycles * 3,
            lifecycles,
            events: lifecycles * EVENTS_PER_LIFECYCLE,
            elapsed: begin.elapsed(),
            latency,
        })
    }

    /// Every signal is sent `times` over, by as many callers at once, each under its own command id.
    pub(super) async fn run_duplicates(
        self,
        ledger: &Ledger,
        times: u32,
    ) -> anyhow::Result<Measured> {
        let ledger = ledger.clone();
        let one = move |number| {
            let ledger = ledger.clone();
            async move {
                let (job, commands) = self.lifecycle(&ledger, number)?;
                let mut marks = vec![Instant::now()];
                for command in commands {
                    let calls: Vec<_> = (0..times)
                        .map(|_| {
                            let (ledger, job) = (ledger.clone(), job.clone());
                            let command = command.clone();
                            tokio::spawn(async move {
                                ledger.job(CommandId::random(), job, command).await
                            })
                        })
                        .collect();
                    let mut applied = 0;
                    for call in calls {
                        let outcome = call.await.context("a caller died")??;
                        ensure!(outcome.is_done(), "not done: {outcome:?}");
                        applied += u32::from(matches!(outcome, Outcome::Applied(_)));
                    }
                    ensure!(
                        applied == 1,
                        "{applied} of {times} equal signals were applied"
                    );
                    marks.push(Instant::now());
                }
                Ok(marks)
            }
        };
        let (elapsed, latency) = self.share(self.lifecycles, one).await?;
        let lifecycles = u64::from(self.lifecycles);
        let events = lifecycles * EVENTS_PER_LIFECYCLE;
        let operations = lifecycles * 3 * u64::from(times);
        Ok(Measured {
            operations,
            lifecycles,
            events,
            elapsed,
            latency,
        })
    }

    /// `callers` callers read balances.
    pub(super) async fn read_balances(
        self,
        ledger: &Ledger,
        callers: u32,
        reads: u32,
    ) -> anyhow::Result<Measured> {
        let ledger = ledger.clone();
        let accounts = self.accounts();
        let one = move |number| {
            let ledger = ledger.clone();
            async move {
                let begin = Instant::now();
                ledger.account(&super::account(number % accounts)).await?;
                Ok(vec![begin, Instant::now()])
            }
        };
        let (elapsed, latency) = Self { callers, ..self }.share(reads, one).await?;
        let operations = u64::from(reads);
        Ok(Measured {
            operations,
            lifecycles: 0,
            events: 0,
            elapsed,
            latency,
        })
    }
}
