//! The whole state × command table of a job's life, as the specification writes it.
//!
//! Rows are states, columns are commands; how a cell is written is in [`notation`](super::notation). `n` is the highest attempt
//! so far, `c` the cost. A row's state is built by the commands in [`given`]; every cell is decided, folded, and checked against the
//! job's invariants. [`no_cell_is_missing`] holds the tables to every state and every command there is.

use std::collections::{BTreeMap, BTreeSet};

use recoup::job::{Timer, Work};
use recoup::{FailureClass, JobCommand, Revision};

use super::life::{Life, extend, fail, start, succeed};
use super::notation::{in_costs, write};

/// What each row is: its state's name, highest attempt, net, hold, and timer.
const STATES: &str = "
state                       | name            | n | net | held | timer
None                        | none            | 0 | 0   | 0    | none
Voided                      | voided          | 0 | 0   | 0    | none
Queued, external            | queued          | 0 | −c  | 0    | start_by
Queued, claimed             | queued          | 0 | −c  | 0    | start_by
Queued, redriven            | queued          | 2 | 0   | +c   | start_by
Running, external           | running         | 1 | −c  | 0    | lease_until
Running, claimed            | running         | 1 | −c  | 0    | lease_until
Running, the only try       | running         | 1 | −c  | 0    | lease_until
Running, restarted          | running         | 2 | 0   | +c   | lease_until
Running, on retry           | running         | 2 | 0   | +c   | lease_until
Running, on the last retry  | running         | 2 | 0   | +c   | lease_until
Running, redriven           | running         | 3 | 0   | +c   | lease_until
RetryScheduled, waiting     | retry_scheduled | 2 | 0   | +c   | give_up_at
RetryScheduled, due         | retry_scheduled | 2 | 0   | +c   | give_up_at
Failed, external            | failed          | 2 | 0   | 0    | none
Failed, never started       | failed          | 0 | 0   | 0    | none
Failed, claimed             | failed          | 2 | 0   | 0    | none
DeadLettered                | dead_lettered   | 2 | 0   | 0    | none
DeadLettered, never started | dead_lettered   | 0 | 0   | 0    | none
Delivered                   | delivered       | 2 | −c  | 0    | none
Delivered, reclaimed        | delivered       | 2 | −c  | 0    | none
Delivered, by an older one  | delivered       | 2 | −c  | 0    | none
Cancelled                   | cancelled       | 2 | 0   | 0    | none
Discarded                   | discarded       | 2 | 0   | 0    | none
";

/// The commands that lead to each row.
fn given(state: &str) -> Life {
    let claimed_on_retry = |cap| Life::with_cap(cap).charge().start().fail(1).due().start();
    match state {
        "None" => Life::external(),
        "Voided" => Life::external().void(),
        "Queued, external" => Life::external().charge(),
        "Queued, claimed" => Life::claimed().charge(),
        "Queued, redriven" => claimed_on_retry(2).fail(2).redrive(),
        "Running, external" => Life::external().charge().start(),
        "Running, claimed" => Life::claimed().charge().start(),
        "Running, the only try" => Life::with_cap(1).charge().start(),
        "Running, restarted" => Life::external().charge().start().fail(1).start(),
        "Running, on retry" => claimed_on_retry(3),
        "Running, on the last retry" => claimed_on_retry(2),
        "Running, redriven" => claimed_on_retry(2).fail(2).redrive().start(),
        "RetryScheduled, waiting" => claimed_on_retry(3).fail(2),
        "RetryScheduled, due" => claimed_on_retry(3).fail(2).due(),
        "Failed, external" => Life::external().charge().start().fail(1).fail(2),
        "Failed, never started" => Life::external().charge().run_out(),
        "Failed, claimed" => claimed_on_retry(3).fail_as(2, FailureClass::Terminal),
        "DeadLettered" => claimed_on_retry(2).fail(2),
        "DeadLettered, never started" => Life::claimed().charge().run_out(),
        "Delivered" => Life::claimed().charge().start().succeed(2),
        "Delivered, reclaimed" => claimed_on_retry(2).succeed(2),
        "Delivered, by an older one" => claimed_on_retry(2).succeed(1),
        "Cancelled" => claimed_on_retry(3).fail(2).cancel(),
        "Discarded" => claimed_on_retry(2).fail(2).discard(),
        other => panic!("no way to the state {other:?} is known"),
    }
}

/// A charge is one of the same content. A timer is the state's own, run out; where there is none, one that is long gone.
const CHARGE_START_TIMER: &str = "
state                       | charge               | start                             | timer
None                        | admitted: Charged{−c} | ✗NoSuchJob                       | ✗NoSuchJob
Voided                      | admitted: Charged{−c} | ✗NoSuchJob                       | ✗NoSuchJob
Queued, external            | =          | AttemptStarted{n+1}                         | Refunded{+c} Failed
Queued, claimed             | =          | AttemptStarted{n+1}                         | Refunded{+c} DeadLettered{NotStarted}
Queued, redriven            | =          | AttemptStarted{n+1}                         | DeadLettered{NotStarted, held −c}
Running, external           | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} Refunded{+c} Failed
Running, claimed            | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} Refunded{+c, held +c} RetryScheduled
Running, the only try       | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} Refunded{+c} DeadLettered{CapReached}
Running, restarted          | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} Failed{held −c}
Running, on retry           | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} RetryScheduled
Running, on the last retry  | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} DeadLettered{CapReached, held −c}
Running, redriven           | =          | ✗AttemptRunning                             | AttemptFailed{n timeout} RetryScheduled
RetryScheduled, waiting     | =          | ✗NotDue                                     | DeadLettered{NotStarted, held −c}
RetryScheduled, due         | =          | AttemptStarted{n+1}                         | DeadLettered{NotStarted, held −c}
Failed, external            | ✗JobEnded  | admitted: AttemptStarted{n+1, held +c}      | =
Failed, never started       | ✗JobEnded  | admitted: AttemptStarted{n+1, held +c}      | =
Failed, claimed             | ✗JobEnded  | ✗JobEnded                                   | =
DeadLettered                | ✗JobEnded  | ✗JobEnded                                   | =
DeadLettered, never started | ✗JobEnded  | ✗JobEnded                                   | =
Delivered                   | =          | ✗AlreadyDelivered                           | =
Delivered, reclaimed        | =          | ✗AlreadyDelivered                           | =
Delivered, by an older one  | =          | ✗AlreadyDelivered                           | =
Cancelled                   | ✗JobEnded  | ✗JobEnded                                   | =
Discarded                   | ✗JobEnded  | ✗JobEnded                                   | =
";

const CANCEL_REDRIVE_DISCARD: &str = "
state                       | cancel                 | redrive                              | discard
None                        | ✗NoSuchJob             | ✗NoSuchJob                           | ✗NoSuchJob
Voided                      | ✗NoSuchJob             | ✗NoSuchJob                           | ✗NoSuchJob
Queued, external            | Cancelled Refunded{+c} | ✗NotDeadLettered                     | ✗NotDeadLettered
Queued, claimed             | Cancelled Refunded{+c} | ✗NotDeadLettered                     | ✗NotDeadLettered
Queued, redriven            | Cancelled{held −c}     | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, external           | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, claimed            | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, the only try       | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, restarted          | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, on retry           | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, on the last retry  | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
Running, redriven           | ✗AttemptRunning        | ✗NotDeadLettered                     | ✗NotDeadLettered
RetryScheduled, waiting     | Cancelled{held −c}     | ✗NotDeadLettered                     | ✗NotDeadLettered
RetryScheduled, due         | Cancelled{held −c}     | ✗NotDeadLettered                     | ✗NotDeadLettered
Failed, external            | Cancelled              | ✗JobEnded                            | ✗NotDeadLettered
Failed, never started       | Cancelled              | ✗JobEnded                            | ✗NotDeadLettered
Failed, claimed             | Cancelled              | admitted: Redriven{base n, held +c}  | Discarded
DeadLettered                | Cancelled              | admitted: Redriven{base n, held +c}  | Discarded
DeadLettered, never started | Cancelled              | admitted: Redriven{base n, held +c}  | Discarded
Delivered                   | ✗AlreadyDelivered      | ✗AlreadyDelivered                    | ✗AlreadyDelivered
Delivered, reclaimed        | ✗AlreadyDelivered      | ✗AlreadyDelivered                    | ✗AlreadyDelivered
Delivered, by an older one  | ✗AlreadyDelivered      | ✗AlreadyDelivered                    | ✗AlreadyDelivered
Cancelled                   | =                      | ✗JobEnded                            | ✗NotDeadLettered
Discarded                   | ✗JobEnded              | ✗JobEnded                            | =
";

/// Sent when more than a third of the lease is over. Where `n−1` or `n` is below 1, there is no such attempt.
const EXTEND: &str = "
state                       | extend n−1       | extend n         | extend n+1
None                        | ✗NoSuchJob       | ✗NoSuchJob       | ✗NoSuchJob
Voided                      | ✗NoSuchJob       | ✗NoSuchJob       | ✗NoSuchJob
Queued, external            | ✗UnknownAttempt  | ✗UnknownAttempt  | ✗LeaseLost
Queued, claimed             | ✗UnknownAttempt  | ✗UnknownAttempt  | ✗LeaseLost
Queued, redriven            | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Running, external           | ✗UnknownAttempt  | LeaseExtended{n} | ✗LeaseLost
Running, claimed            | ✗UnknownAttempt  | LeaseExtended{n} | ✗LeaseLost
Running, the only try       | ✗UnknownAttempt  | LeaseExtended{n} | ✗LeaseLost
Running, restarted          | ✗LeaseLost       | LeaseExtended{n} | ✗LeaseLost
Running, on retry           | ✗LeaseLost       | LeaseExtended{n} | ✗LeaseLost
Running, on the last retry  | ✗LeaseLost       | LeaseExtended{n} | ✗LeaseLost
Running, redriven           | ✗LeaseLost       | LeaseExtended{n} | ✗LeaseLost
RetryScheduled, waiting     | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
RetryScheduled, due         | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Failed, external            | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Failed, never started       | ✗UnknownAttempt  | ✗UnknownAttempt  | ✗LeaseLost
Failed, claimed             | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
DeadLettered                | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
DeadLettered, never started | ✗UnknownAttempt  | ✗UnknownAttempt  | ✗LeaseLost
Delivered                   | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Delivered, reclaimed        | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Delivered, by an older one  | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Cancelled                   | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
Discarded                   | ✗LeaseLost       | ✗LeaseLost       | ✗LeaseLost
";

const SUCCEED: &str = "
state                       | succeed n−1                               | succeed n                               | succeed n+1
None                        | ✗NoSuchJob                                | ✗NoSuchJob                              | ✗NoSuchJob
Voided                      | ✗NoSuchJob                                | ✗NoSuchJob                              | ✗NoSuchJob
Queued, external            | ✗UnknownAttempt                           | ✗UnknownAttempt                         | Delivered{n+1}
Queued, claimed             | ✗UnknownAttempt                           | ✗UnknownAttempt                         | Delivered{n+1}
Queued, redriven            | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
Running, external           | ✗UnknownAttempt                           | Delivered{n}                            | Delivered{n+1}
Running, claimed            | ✗UnknownAttempt                           | Delivered{n}                            | Delivered{n+1}
Running, the only try       | ✗UnknownAttempt                           | Delivered{n}                            | Delivered{n+1}
Running, restarted          | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
Running, on retry           | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
Running, on the last retry  | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
Running, redriven           | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
RetryScheduled, waiting     | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
RetryScheduled, due         | Delivered{n−1} Reclaimed{−c, held −c}     | Delivered{n} Reclaimed{−c, held −c}     | Delivered{n+1} Reclaimed{−c, held −c}
Failed, external            | Delivered{n−1} Reclaimed{−c}              | Delivered{n} Reclaimed{−c}              | Delivered{n+1} Reclaimed{−c}
Failed, never started       | ✗UnknownAttempt                           | ✗UnknownAttempt                         | Delivered{n+1} Reclaimed{−c}
Failed, claimed             | Delivered{n−1} Reclaimed{−c}              | Delivered{n} Reclaimed{−c}              | Delivered{n+1} Reclaimed{−c}
DeadLettered                | Delivered{n−1} Reclaimed{−c}              | Delivered{n} Reclaimed{−c}              | Delivered{n+1} Reclaimed{−c}
DeadLettered, never started | ✗UnknownAttempt                           | ✗UnknownAttempt                         | Delivered{n+1} Reclaimed{−c}
Delivered                   | =                                         | =                                       | =
Delivered, reclaimed        | =                                         | =                                       | =
Delivered, by an older one  | =                                         | =                                       | =
Cancelled                   | ◆ Contradicted{succeeded n−1}             | ◆ Contradicted{succeeded n}             | ◆ Contradicted{succeeded n+1}
Discarded                   | ◆ Contradicted{succeeded n−1}             | ◆ Contradicted{succeeded n}             | ◆ Contradicted{succeeded n+1}
";

const FAIL_RETRYABLE: &str = "
state                       | retryable n−1               | retryable n                                              | retryable n+1
None                        | ✗NoSuchJob                  | ✗NoSuchJob                                               | ✗NoSuchJob
Voided                      | ✗NoSuchJob                  | ✗NoSuchJob                                               | ✗NoSuchJob
Queued, external            | ✗UnknownAttempt             | ✗UnknownAttempt                                          | AttemptFailed{n+1} Refunded{+c} Failed
Queued, claimed             | ✗UnknownAttempt             | ✗UnknownAttempt                                          | ✗NotStarted
Queued, redriven            | =                           | =                                                        | ✗NotStarted
Running, external           | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Failed                     | ✗AttemptRunning
Running, claimed            | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c, held +c} RetryScheduled    | ✗AttemptRunning
Running, the only try       | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} DeadLettered{CapReached}   | ✗AttemptRunning
Running, restarted          | =                           | AttemptFailed{n} Failed{held −c}                         | ✗AttemptRunning
Running, on retry           | =                           | AttemptFailed{n} RetryScheduled                          | ✗AttemptRunning
Running, on the last retry  | =                           | AttemptFailed{n} DeadLettered{CapReached, held −c}       | ✗AttemptRunning
Running, redriven           | =                           | AttemptFailed{n} RetryScheduled                          | ✗AttemptRunning
RetryScheduled, waiting     | =                           | =                                                        | ✗NotStarted
RetryScheduled, due         | =                           | =                                                        | ✗NotStarted
Failed, external            | =                           | =                                                        | AttemptFailed{n+1}
Failed, never started       | ✗UnknownAttempt             | ✗UnknownAttempt                                          | AttemptFailed{n+1}
Failed, claimed             | =                           | =                                                        | ✗JobEnded
DeadLettered                | =                           | =                                                        | ✗JobEnded
DeadLettered, never started | ✗UnknownAttempt             | ✗UnknownAttempt                                          | ✗JobEnded
Delivered                   | =                           | ◆ Contradicted{failed n}                                 | =
Delivered, reclaimed        | =                           | ◆ Contradicted{failed n}                                 | =
Delivered, by an older one  | ◆ Contradicted{failed n−1}  | =                                                        | =
Cancelled                   | =                           | =                                                        | ✗JobEnded
Discarded                   | =                           | =                                                        | ✗JobEnded
";

const FAIL_TERMINAL: &str = "
state                       | terminal n−1                | terminal n                             | terminal n+1
None                        | ✗NoSuchJob                  | ✗NoSuchJob                             | ✗NoSuchJob
Voided                      | ✗NoSuchJob                  | ✗NoSuchJob                             | ✗NoSuchJob
Queued, external            | ✗UnknownAttempt             | ✗UnknownAttempt                        | AttemptFailed{n+1} Refunded{+c} Failed
Queued, claimed             | ✗UnknownAttempt             | ✗UnknownAttempt                        | ✗NotStarted
Queued, redriven            | =                           | =                                      | ✗NotStarted
Running, external           | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Failed   | ✗AttemptRunning
Running, claimed            | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Failed   | ✗AttemptRunning
Running, the only try       | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Failed   | ✗AttemptRunning
Running, restarted          | =                           | AttemptFailed{n} Failed{held −c}       | ✗AttemptRunning
Running, on retry           | =                           | AttemptFailed{n} Failed{held −c}       | ✗AttemptRunning
Running, on the last retry  | =                           | AttemptFailed{n} Failed{held −c}       | ✗AttemptRunning
Running, redriven           | =                           | AttemptFailed{n} Failed{held −c}       | ✗AttemptRunning
RetryScheduled, waiting     | =                           | AttemptFailed{n} Failed{held −c}       | ✗NotStarted
RetryScheduled, due         | =                           | AttemptFailed{n} Failed{held −c}       | ✗NotStarted
Failed, external            | =                           | =                                      | AttemptFailed{n+1}
Failed, never started       | ✗UnknownAttempt             | ✗UnknownAttempt                        | AttemptFailed{n+1}
Failed, claimed             | =                           | =                                      | ✗JobEnded
DeadLettered                | =                           | =                                      | ✗JobEnded
DeadLettered, never started | ✗UnknownAttempt             | ✗UnknownAttempt                        | ✗JobEnded
Delivered                   | =                           | ◆ Contradicted{failed n}               | =
Delivered, reclaimed        | =                           | ◆ Contradicted{failed n}               | =
Delivered, by an older one  | ◆ Contradicted{failed n−1}  | =                                      | =
Cancelled                   | =                           | =                                      | ✗JobEnded
Discarded                   | =                           | =                                      | ✗JobEnded
";

const FAIL_CANCELLED: &str = "
state                       | cancelled n−1               | cancelled n                               | cancelled n+1
None                        | ✗NoSuchJob                  | ✗NoSuchJob                                | ✗NoSuchJob
Voided                      | ✗NoSuchJob                  | ✗NoSuchJob                                | ✗NoSuchJob
Queued, external            | ✗UnknownAttempt             | ✗UnknownAttempt                           | AttemptFailed{n+1} Refunded{+c} Cancelled
Queued, claimed             | ✗UnknownAttempt             | ✗UnknownAttempt                           | ✗NotStarted
Queued, redriven            | =                           | =                                         | ✗NotStarted
Running, external           | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Cancelled   | ✗AttemptRunning
Running, claimed            | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Cancelled   | ✗AttemptRunning
Running, the only try       | ✗UnknownAttempt             | AttemptFailed{n} Refunded{+c} Cancelled   | ✗AttemptRunning
Running, restarted          | =                           | AttemptFailed{n} Cancelled{held −c}       | ✗AttemptRunning
Running, on retry           | =                           | AttemptFailed{n} Cancelled{held −c}       | ✗AttemptRunning
Running, on the last retry  | =                           | AttemptFailed{n} Cancelled{held −c}       | ✗AttemptRunning
Running, redriven           | =                           | AttemptFailed{n} Cancelled{held −c}       | ✗AttemptRunning
RetryScheduled, waiting     | =                           | AttemptFailed{n} Cancelled{held −c}       | ✗NotStarted
RetryScheduled, due         | =                           | AttemptFailed{n} Cancelled{held −c}       | ✗NotStarted
Failed, external            | =                           | =                                         | AttemptFailed{n+1} Cancelled
Failed, never started       | ✗UnknownAttempt             | ✗UnknownAttempt                           | AttemptFailed{n+1} Cancelled
Failed, claimed             | =                           | =                                         | ✗JobEnded
DeadLettered                | =                           | =                                         | ✗JobEnded
DeadLettered, never started | ✗UnknownAttempt             | ✗UnknownAttempt                           | ✗JobEnded
Delivered                   | =                           | ◆ Contradicted{failed n}                  | =
Delivered, reclaimed        | =                           | ◆ Contradicted{failed n}                  | =
Delivered, by an older one  | ◆ Contradicted{failed n−1}  | =                                         | =
Cancelled                   | =                           | =                                         | ✗JobEnded
Discarded                   | =                           | =                                         | ✗JobEnded
";

const TABLES: [&str; 7] = [
    CHARGE_START_TIMER,
    CANCEL_REDRIVE_DISCARD,
    EXTEND,
    SUCCEED,
    FAIL_RETRYABLE,
    FAIL_TERMINAL,
    FAIL_CANCELLED,
];

/// The columns that there have to be: a command, and with which attempt and class where it has them.
const COLUMNS: [&str; 21] = [
    "charge",
    "start",
    "extend n−1",
    "extend n",
    "extend n+1",
    "retryable n−1",
    "retryable n",
    "retryable n+1",
    "terminal n−1",
    "terminal n",
    "terminal n+1",
    "cancelled n−1",
    "cancelled n",
    "cancelled n+1",
    "succeed n−1",
    "succeed n",
    "succeed n+1",
    "cancel",
    "redrive",
    "discard",
    "timer",
];

/// The commands of a column, in a state. More than one where there are several of the kind that must be answered alike.
fn when(column: &str, life: &mut Life) -> Vec<JobCommand> {
    let n = life.highest();
    let (verb, attempt) = match column.split_once(' ') {
        Some((verb, "n−1")) => (verb, n.saturating_sub(1)),
        Some((verb, "n")) => (verb, n),
        Some((verb, "n+1")) => (verb, n + 1),
        Some(_) | None => (column, 0),
    };
    let one = match verb {
        "charge" => life.charging(),
        "start" => start(),
        "extend" => {
            *life = life.clone().wait_ms(life.policy.lease_ms / 2);
            extend(attempt)
        }
        "retryable" => fail(attempt, FailureClass::Retryable),
        "terminal" => fail(attempt, FailureClass::Terminal),
        "cancelled" => fail(attempt, FailureClass::Cancelled),
        "succeed" => succeed(attempt),
        "cancel" => JobCommand::Cancel { reason: None },
        "redrive" => JobCommand::Redrive { reason: None },
        "discard" => JobCommand::Discard { reason: None },
        "timer" => return timers(life),
        other => panic!("no command is known for the column {other:?}"),
    };
    vec![one]
}

/// The state's own timer, run out; every timer that ever was, where it has none.
fn timers(life: &mut Life) -> Vec<JobCommand> {
    let running = life.job.recorded().and_then(|job| job.work.timer());
    if let Some((timer, armed_at, deadline)) = running {
        life.now.at = deadline;
        return vec![JobCommand::Expire { timer, armed_at }];
    }
    let all = [Timer::StartBy, Timer::LeaseUntil, Timer::GiveUpAt];
    let revisions = 0..=life.job.events();
    let every = revisions.flat_map(|revision| {
        let armed_at = Revision::new(revision);
        all.map(|timer| JobCommand::Expire { timer, armed_at })
    });
    every.collect()
}

struct Row<'a> {
    state: &'a str,
    cells: BTreeMap<&'a str, &'a str>,
}

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    let mut lines = table
        .trim()
        .lines()
        .map(|line| line.split('|').map(str::trim));
    let header: Vec<_> = lines.next().expect("a table has a header").collect();
    lines.map(move |line| {
        let cells: Vec<_> = line.collect();
        assert_eq!(
            cells.len(),
            header.len(),
            "the row {cells:?} does not fit {header:?}"
        );
        let named = header.iter().copied().zip(cells.iter().copied()).skip(1);
        Row {
            state: cells[0],
            cells: named.collect(),
        }
    })
}

#[test]
fn every_state_is_what_its_row_says() {
    for Row { state, cells } in rows(STATES) {
        let life = given(state);
        let timer = life.job.recorded().and_then(|job| job.work.timer());
        let written = |amount| in_costs(amount).unwrap_or_else(|| "0".to_owned());
        assert_eq!(life.state_name(), cells["name"], "{state}");
        assert_eq!(life.highest().to_string(), cells["n"], "{state}: n");
        assert_eq!(written(life.net()), cells["net"], "{state}: net");
        assert_eq!(written(life.held()), cells["held"], "{state}: held");
        let timer = timer.map_or("none", |(timer, _, _)| timer.name());
        assert_eq!(timer, cells["timer"], "{state}: timer");
    }
}

#[test]
fn every_cell_is_answered_as_written() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Row { state, cells } in TABLES.into_iter().flat_map(rows) {
        for (column, expected) in cells {
            let mut life = given(state);
            let n = life.highest();
            for command in when(column, &mut life) {
                let answer = life.clone().send(&command);
                let written = write(&answer, n);
                if written != expected {
                    wrong.push(format!("{state} × {column}: {written}, not {expected}"));
                }
            }
            checked += 1;
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {checked} cells:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn no_cell_is_missing() {
    let states: BTreeSet<_> = rows(STATES).map(|row| row.state).collect();
    let mut cells = BTreeSet::new();
    for row in TABLES.into_iter().flat_map(rows) {
        for (column, cell) in row.cells {
            assert!(!cell.is_empty(), "{} × {column} is empty", row.state);
            assert!(
                cells.insert((row.state, column)),
                "{} × {column} stands twice",
                row.state
            );
        }
    }
    let all = states
        .iter()
        .flat_map(|&state| COLUMNS.map(|column| (state, column)));
    assert_eq!(cells, all.collect::<BTreeSet<_>>());
}

/// A state or a command that is added to the code does not compile here before it has a row or a column.
#[test]
fn every_state_and_command_of_the_code_is_in_the_table() {
    fn name(work: &Work) -> &'static str {
        match work {
            Work::Queued { .. } => "queued",
            Work::Running { .. } => "running",
            Work::RetryScheduled { .. } => "retry_scheduled",
            Work::Failed => "failed",
            Work::DeadLettered => "dead_lettered",
            Work::Delivered { .. } => "delivered",
            Work::Cancelled => "cancelled",
            Work::Discarded => "discarded",
        }
    }
    fn verb(command: &JobCommand) -> &'static str {
        match command {
            JobCommand::Charge(_) => "charge",
            JobCommand::Start { .. } => "start",
            JobCommand::Extend { .. } => "extend",
            JobCommand::Fail { .. } => "fail",
            JobCommand::Succeed { .. } => "succeed",
            JobCommand::Cancel { .. } => "cancel",
            JobCommand::Redrive { .. } => "redrive",
            JobCommand::Discard { .. } => "discard",
            JobCommand::Expire { .. } => "expire",
        }
    }
    let lives: Vec<_> = rows(STATES).map(|row| given(row.state)).collect();
    let states = lives
        .iter()
        .filter_map(|life| life.job.recorded())
        .map(|job| name(&job.work));
    assert_eq!(states.collect::<BTreeSet<_>>().len(), 8);
    let mut life = Life::external().charge();
    let verbs = COLUMNS.iter().flat_map(|column| when(column, &mut life));
    let verbs: BTreeSet<_> = verbs.map(|command| verb(&command)).collect();
    assert_eq!(verbs.len(), 9);
}
