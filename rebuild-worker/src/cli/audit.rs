//! `recoup audit`: proves that every job is legal and that every figure agrees with the log. Violations are exit code 4.
//!
//! The projections are brought to the head first, so that the whole log is compared, also on a ledger that never ran a projector. What
//! cannot be brought there is compared at the position where it stands.

use recoup_projections::Projections;
use recoup_projections::audit::{Audit, audit};
use serde_json::{Value, json};

use super::answer::{Answer, complain};
use super::session::{Global, Session};
use super::table::{Column, counted, printable, table};
use crate::exit::Exit;

pub(super) async fn run(global: &Global) -> anyhow::Result<Answer> {
    let session = global.open().await?;
    bring_forward(&session).await;
    let audit = audit(&session.database).await?;
    let exit = if audit.violations == 0 {
        Exit::Done
    } else {
        Exit::Violations
    };
    Ok(Answer::new(exit, document(&session, &audit), text(&audit)))
}

async fn bring_forward(session: &Session) {
    if let Err(error) = session.database.settle_figures().await {
        complain(&format!(
            "warning: account figures are compared where they stand: {error}"
        ));
    }
    let brought = match Projections::open(session.database.clone()).await {
        Ok(projections) => projections.catch_up().await,
        Err(error) => Err(error),
    };
    match brought {
        Ok(progress) => {
            for (projection, halt) in progress.halted() {
                complain(&format!(
                    "warning: {projection} cannot get past event {}: {}; it is compared up to there",
                    halt.position, halt.reason
                ));
            }
        }
        // Rows that are behind, or of another log, are for the audit to judge.
        Err(error) => complain(&format!(
            "warning: projections are compared where they stand: {error}"
        )),
    }
}

fn document(session: &Session, audit: &Audit) -> Value {
    let checks: Vec<Value> = audit
        .checks
        .iter()
        .map(|check| {
            json!({ "check": check.name, "checked": check.checked, "violations": check.violations })
        })
        .collect();
    let findings: Vec<Value> = audit
        .findings
        .iter()
        .map(|finding| {
            json!({
                "check": finding.check,
                "subject": finding.subject,
                "what": finding.what,
                "expected": finding.expected,
                "found": finding.found,
            })
        })
        .collect();
    let checked = audit
        .checks
        .iter()
        .fold(0_u64, |sum, check| sum.saturating_add(check.checked));
    json!({
        "checks": checked,
        "by_check": checks,
        "violations": audit.violations,
        "findings": findings,
        "position": audit.position.get(),
        "events": audit.events,
        "scale": session.scale.get(),
    })
}

fn text(audit: &Audit) -> String {
    let columns = [
        Column::Text("check"),
        Column::Number("checked"),
        Column::Number("violations"),
    ];
    let rows = audit.checks.iter().map(|check| {
        vec![
            check.name.to_owned(),
            check.checked.to_string(),
            check.violations.to_string(),
        ]
    });
    let mut lines = vec![table(&columns, rows)];
    lines.extend(
        audit
            .findings
            .iter()
            .map(|finding| printable(&finding.to_string())),
    );
    let untold = audit.violations.saturating_sub(audit.findings.len() as u64);
    if untold > 0 {
        lines.push(format!("and {untold} more"));
    }
    lines.push(format!(
        "{} in {} up to position {}",
        counted(audit.violations, "violation"),
        counted(audit.events, "event"),
        audit.position
    ));
    lines.join("\n")
}
