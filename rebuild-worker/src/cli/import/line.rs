//! One line of a file into a command.
//!
//! Read strictly: an object with the keys of its operation, each once, and nothing else. Ids, amounts and texts are parsed into their types
//! here, and a price must multiply out to its cost, so that what leaves this module is a command that the ledger can decide on.

use std::fmt;
use std::marker::PhantomData;

use recoup::job::PolicyChoice;
use recoup::price::PriceLine;
use recoup::retry::Mode;
use recoup::{
    AccountId, Adjust, AdjustmentId, Attempt, Command, Cost, Delta, FailureClass, Grant, GrantId,
    JobCommand, JobId, JobResult, Kind, Lease, Ledger, Limit, PriceListId, PriceSnapshot, Reason,
    Rounding, Timestamp, WorkerId,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::cli::values;

const OPERATIONS: &str =
    "charge, start, extend, fail, succeed, cancel, redrive, discard, grant, adjust, limit";

/// Whether lines say when they happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instants {
    /// They must not: the store's clock says when.
    Refused,
    /// They must: that is what a backfill is for.
    Needed,
}

/// Reads a line, and when it happened; `ledger` knows the policies by kind.
pub(super) fn parse(
    line: &[u8],
    ledger: &Ledger,
    instants: Instants,
) -> Result<(Command, Option<Timestamp>), String> {
    let line = std::str::from_utf8(line)
        .map_err(|error| format!("byte {} is no UTF-8", error.valid_up_to() + 1))?;
    let head: Head = read(line)?;
    if head.recoup_log.is_some() {
        return Err(
            "this begins an exported log, which is taken in alone and from its first line"
                .to_owned(),
        );
    }
    let op = head
        .op
        .ok_or_else(|| format!("op is missing: it is one of {OPERATIONS}"))?;
    let at = match (instants, head.at) {
        (Instants::Refused, None) => None,
        (Instants::Refused, Some(_)) => {
            return Err(
                "at is for import --backfill: otherwise the store's clock says when".to_owned(),
            );
        }
        (Instants::Needed, None) => {
            return Err(
                "at is missing: with --backfill every line says when it happened".to_owned(),
            );
        }
        (Instants::Needed, Some(Instant::Other(_))) => {
            return Err("at is not a text such as \"2026-11-29T10:00:00Z\"".to_owned());
        }
        (Instants::Needed, Some(Instant::Text(text))) => {
            Some(Timestamp::parse(&text).map_err(|error| format!("at: {error}"))?)
        }
    };
    let command = match op.as_str() {
        "charge" => read::<ChargeLine>(line)?.command(ledger)?,
        "start" => read::<StartLine>(line)?.command(),
        "extend" => read::<ExtendLine>(line)?.command(),
        "fail" => read::<FailLine>(line)?.command(),
        "succeed" => read::<SucceedLine>(line)?.command(),
        "cancel" => read::<EndLine>(line)?.command(|reason| JobCommand::Cancel { reason }),
        "redrive" => read::<EndLine>(line)?.command(|reason| JobCommand::Redrive { reason }),
        "discard" => read::<EndLine>(line)?.command(|reason| JobCommand::Discard { reason }),
        "grant" => read::<GrantLine>(line)?.command(),
        "adjust" => read::<AdjustLine>(line)?.command()?,
        "limit" => read::<LimitLine>(line)?.command()?,
        other => return Err(format!("unknown op {other:?}: it is one of {OPERATIONS}")),
    };
    Ok((command, at))
}

/// Reads a price as it stands in a charge.
pub(in crate::cli) fn parse_price(text: &str) -> Result<PriceSnapshot, String> {
    read::<PriceText>(text).map(PriceText::snapshot)
}

/// Reads an object. An error says the column; the line's number is known to the caller.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str::<Object<T>>(text)
        .map(|Object(value)| value)
        .map_err(|error| {
            let place = format!(" at line {} column {}", error.line(), error.column());
            let text = error.to_string();
            match text.strip_suffix(&place) {
                Some(cause) => format!("column {}: {cause}", error.column()),
                None => text,
            }
        })
}

/// An object and nothing else: a derived reader would take an array of the values too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Keys(PhantomData))
    }
}

/// An instant as it stands in a line; read on its own, so that what is wrong with it says so.
#[derive(Deserialize)]
#[serde(untagged)]
enum Instant {
    Text(String),
    Other(IgnoredAny),
}

/// What is read first: which operation it is, and what is refused whatever it is.
#[derive(Deserialize)]
struct Head {
    op: Option<String>,
    at: Option<Instant>,
    recoup_log: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceText {
    list: PriceListId,
    rounding: Rounding,
    lines: Vec<Object<PriceLine>>,
}

impl PriceText {
    fn snapshot(self) -> PriceSnapshot {
        let lines = self.lines.into_iter().map(|Object(line)| line).collect();
        PriceSnapshot {
            list: self.list,
            rounding: self.rounding,
            lines,
        }
    }
}

/// Reads a number and says which one is outside its range.
fn amount<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    name: &str,
    parse: impl FnOnce(i64) -> Result<T, recoup::credits::AmountError>,
) -> Result<T, D::Error> {
    let number = i64::deserialize(deserializer)?;
    parse(number).map_err(|error| de::Error::custom(format_args!("{name}: {error}")))
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
    amount(deserializer, "cost", Cost::new)
}

fn grant_amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
    amount(deserializer, "amount", Cost::new)
}

fn delta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Delta, D::Error> {
    amount(deserializer, "amount", Delta::new)
}

/// Reads how long a started attempt may run; null is absent.
fn lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Lease>, D::Error> {
    let ms: Option<u64> = Option::deserialize(deserializer)?;
    ms.map(Lease::from_ms)
        .transpose()
        .map_err(de::Error::custom)
}

/// A key that is there, be it null: absent and null differ.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<i64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// The key that was read before, taken again so that no other one is left over.
type Op = IgnoredAny;

/// The same, of the instant.
type At = IgnoredAny;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChargeLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    job: JobId,
    account: AccountId,
    #[serde(deserialize_with = "cost")]
    cost: Cost,
    kind: Kind,
    price: Option<Object<PriceText>>,
    policy: Option<Mode>,
}

impl ChargeLine {
    fn command(self, ledger: &Ledger) -> Result<Command, String> {
        let price = self.price.map_or_else(
            || PriceSnapshot::flat(self.cost),
            |Object(price)| price.snapshot(),
        );
        let choice = self.policy.map(PolicyChoice::Mode);
        let charge = ledger
            .charge_of(self.account, self.kind, self.cost, price, choice)
            .map_err(|error| error.to_string())?;
        Ok(Command::Job(self.job, JobCommand::Charge(Box::new(charge))))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    job: JobId,
    worker: Option<WorkerId>,
    #[serde(default, deserialize_with = "lease")]
    lease_ms: Option<Lease>,
}

impl StartLine {
    fn command(self) -> Command {
        Command::Job(
            self.job,
            JobCommand::Start {
                worker: self.worker,
                lease: self.lease_ms,
            },
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    job: JobId,
    attempt: Attempt,
}

impl ExtendLine {
    fn command(self) -> Command {
        Command::Job(
            self.job,
            JobCommand::Extend {
                attempt: self.attempt,
            },
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    job: JobId,
    attempt: Attempt,
    #[serde(default)]
    class: FailureClass,
    reason: Option<Reason>,
}

impl FailLine {
    fn command(self) -> Command {
        let Self {
            job,
            attempt,
            class,
            reason,
            ..
        } = self;
        Command::Job(
            job,
            JobCommand::Fail {
                attempt,
                class,
                reason,
            },
        )
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SucceedLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    job: JobId,
    attempt: Attempt,
    result: Option<JobResult>,
}

impl SucceedLine {
    fn command(self) -> Command {
        let Self {
            job,
            attempt,
            result,
            ..
        } = self;
        Command::Job(job, JobCommand::Succeed { attempt, result })
    }
}

/// Operations with nothing but a reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    job: JobId,
    reason: Option<Reason>,
}

impl EndLine {
    fn command(self, of: impl FnOnce(Option<Reason>) -> JobCommand) -> Command {
        Command::Job(self.job, of(self.reason))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    account: AccountId,
    grant: GrantId,
    #[serde(deserialize_with = "grant_amount")]
    amount: Cost,
}

impl GrantLine {
    fn command(self) -> Command {
        let Self {
            account,
            grant,
            amount,
            ..
        } = self;
        Command::Grant(Grant {
            account,
            grant,
            amount,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdjustLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    account: AccountId,
    adjustment: AdjustmentId,
    #[serde(deserialize_with = "delta")]
    amount: Delta,
    reason: String,
    job: Option<JobId>,
}

impl AdjustLine {
    fn command(self) -> Result<Command, String> {
        let reason = values::stated_reason(&self.reason)?;
        let Self {
            account,
            adjustment,
            amount,
            job,
            ..
        } = self;
        Ok(Command::Adjust(Adjust {
            account,
            adjustment,
            amount,
            reason,
            job,
        }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitLine {
    #[serde(rename = "op")]
    _op: Op,
    #[serde(rename = "at", default)]
    _at: Option<At>,
    account: AccountId,
    #[serde(default, deserialize_with = "given")]
    monthly_cap: Option<Option<i64>>,
    #[serde(default, deserialize_with = "given")]
    floor: Option<Option<i64>>,
}

impl LimitLine {
    fn command(self) -> Result<Command, String> {
        let floor = self.floor.map(values::check_floor).transpose()?;
        let cap = self.monthly_cap.map(values::check_cap).transpose()?;
        let monthly_cap = cap.map(|values::Cap(cap)| cap);
        Ok(Command::Limit(Limit {
            account: self.account,
            floor,
            monthly_cap,
        }))
    }
}
