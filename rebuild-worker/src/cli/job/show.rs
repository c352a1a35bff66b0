//! `recoup job show`: one job, folded from its stream, with its entries and every event.

use recoup::job::{Job, JobEvent, Money, Recorded};
use recoup::ledger::load::History;
use recoup::{EventStore, JobId, Scale};
use serde_json::{Map, Value, json};

use super::event::{Fact, facts};
use crate::cli::answer::Answer;
use crate::cli::session::Session;
use crate::cli::table::{Column, counted, list, table, to_second};
use crate::exit::Exit;

pub(super) async fn run(session: &Session, job: &JobId) -> anyhow::Result<Answer> {
    let (folded, history) = session.ledger.show(job).await?;
    let Some(recorded) = folded.recorded() else {
        return Ok(no_such_job(job));
    };
    let document = document(session, &folded, recorded, &history);
    Ok(Answer::new(
        Exit::Done,
        document,
        text(session, &folded, recorded, &history),
    ))
}

fn no_such_job(job: &JobId) -> Answer {
    let code = recoup::Rejection::NoSuchJob.code();
    let document = json!({
        "job": job.as_str(), "outcome": "rejected", "code": code, "error": "no such job",
    });
    Answer::new(Exit::Refused, document, format!("{job}: no such job"))
}

fn document(session: &Session, job: &Job, recorded: &Recorded, history: &[History]) -> Value {
    let terms = &recorded.terms;
    let timer = recorded.work.timer().map(|(timer, _, runs_out_at)| {
        json!({ "name": timer.name(), "runs_out_at": runs_out_at.to_string() })
    });
    let events: Vec<Value> = history.iter().map(event_document).collect();
    json!({
        "job": job.id.as_str(),
        "account": terms.account.as_str(),
        "kind": terms.kind.as_str(),
        "cost": terms.cost.get(),
        "scale": session.scale.get(),
        "state": recorded.work.name(),
        "money": recorded.money.name(),
        "net": recorded.net(),
        "held": recorded.held,
        "attempts": recorded.attempt.get(),
        "revision": job.revision.map(recoup::Revision::get),
        "result": result(recorded),
        "policy": { "mode": terms.policy.mode.name(), "cap": terms.policy.cap },
        "price": serde_json::to_value(&terms.price).unwrap_or(Value::Null),
        "charged_at": terms.charged_at.to_string(),
        "budget_month": terms.budget_month.to_string(),
        "timer": timer,
        "entries": history.iter().filter_map(entry_document).collect::<Vec<_>>(),
        "events": events,
    })
}

fn result(recorded: &Recorded) -> Option<&str> {
    match &recorded.work {
        recoup::job::Work::Delivered { result, .. } => {
            result.as_ref().map(|result| result.as_str())
        }
        _ => None,
    }
}

/// The name of an entry; none for an event that moves no money.
const fn entry_type(event: &JobEvent) -> Option<&'static str> {
    match event {
        JobEvent::Charged(_) => Some("charge"),
        JobEvent::Refunded(_) => Some("refund"),
        JobEvent::Reclaimed(_) => Some("reclaim"),
        _ => None,
    }
}

fn entry_document(history: &History) -> Option<Value> {
    let event = history.event.as_ref()?;
    let (entry_type, posting) = (entry_type(event)?, event.posting()?);
    Some(json!({
        "position": history.position.get(),
        "type": entry_type,
        "amount": posting.amount,
        "posted_at": history.posted_at.to_string(),
        "charged_at": posting.charged_at.map(|at| at.to_string()),
    }))
}

fn event_document(history: &History) -> Value {
    let name = history.event.as_ref().map_or("retired", JobEvent::name);
    let details: Map<String, Value> = history.event.as_ref().map_or_else(Map::new, |event| {
        facts(event)
            .into_iter()
            .map(|(name, fact)| (name.to_owned(), fact.value()))
            .collect()
    });
    json!({
        "position": history.position.get(),
        "revision": history.revision.get(),
        "type": name,
        "posted_at": history.posted_at.to_string(),
        "command_id": history.command.as_str(),
        "details": details,
    })
}

fn text(session: &Session, job: &Job, recorded: &Recorded, history: &[History]) -> String {
    let scale = session.scale;
    let terms = &recorded.terms;
    let mut rows = vec![
        ("job", job.id.to_string()),
        ("account", terms.account.to_string()),
        (
            "kind",
            format!("{} ({})", terms.kind, terms.policy.mode.name()),
        ),
        ("cost", scale.show(terms.cost.get())),
        ("state", state(session, recorded)),
        ("money", money(recorded, scale)),
    ];
    if let Some(result) = result(recorded) {
        rows.push(("result", result.to_owned()));
    }
    let entries = history.iter().filter_map(|history| {
        let event = history.event.as_ref()?;
        let (entry_type, posting) = (entry_type(event)?, event.posting()?);
        let amount = scale.show(posting.amount);
        Some(vec![
            history.position.to_string(),
            to_second(history.posted_at),
            entry_type.to_owned(),
            amount,
        ])
    });
    let entry_columns = [
        Column::Number("position"),
        Column::Text("posted at"),
        Column::Text("entry"),
        Column::Number("amount"),
    ];
    let columns = [
        Column::Number("position"),
        Column::Number("revision"),
        Column::Text("posted at"),
        Column::Text("event"),
        Column::Text("details"),
    ];
    let events = history.iter().map(|history| {
        vec![
            history.position.to_string(),
            history.revision.to_string(),
            to_second(history.posted_at),
            history
                .event
                .as_ref()
                .map_or("retired", JobEvent::name)
                .to_owned(),
            history
                .event
                .as_ref()
                .map_or_else(String::new, |event| details(event, scale)),
        ]
    });
    [
        list(&rows),
        table(&entry_columns, entries),
        table(&columns, events),
    ]
    .join("\n\n")
}

fn state(session: &Session, recorded: &Recorded) -> String {
    let attempts = counted(recorded.attempt.get().into(), "attempt");
    let name = recorded.work.name();
    match recorded.work.timer() {
        None => format!("{name}, {attempts}"),
        Some((timer, _, at)) => {
            let over = if at <= session.database.now() {
                ", over"
            } else {
                ""
            };
            format!("{name}, {attempts}; {} {at}{over}", timer.name())
        }
    }
}

fn money(recorded: &Recorded, scale: Scale) -> String {
    let net = scale.show(recorded.net());
    let held = match recorded.held {
        0 => String::new(),
        held => format!(", {} held", scale.show(held)),
    };
    let told = match recorded.money {
        Money::Charged => "charged",
        Money::Refunded => "refunded",
        Money::Reclaimed => "refunded, then reclaimed",
    };
    format!("{told}: net {net}{held}")
}

fn details(event: &JobEvent, scale: Scale) -> String {
    let facts = facts(event).into_iter();
    let shown = facts.filter_map(|(name, fact)| match fact {
        Fact::Amount(amount) => Some(format!("{name} {}", scale.show(amount))),
        Fact::Milliseconds(ms) => {
            Some(format!("{} {}", name.trim_end_matches("_ms"), duration(ms)))
        }
        Fact::Number(number) => Some(format!("{name} {number}")),
        Fact::Text(text) => Some(format!("{name} {text}")),
        // Told by the job itself, above.
        Fact::Document(_) => None,
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn duration(ms: u64) -> String {
    for (unit, unit_ms) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("min", 60_000),
        ("s", 1_000),
    ] {
        if ms >= unit_ms && ms.is_multiple_of(unit_ms) {
            return format!("{} {unit}", ms / unit_ms);
        }
    }
    format!("{ms} ms")
}
