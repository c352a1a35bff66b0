//! `recoup init`: creates an empty ledger, or says what an existing one was created with.

use recoup::EventStore;
use serde_json::json;

use super::answer::Answer;
use super::session::Global;
use super::table::list;
use crate::exit::Exit;

pub(super) async fn run(global: &Global) -> anyhow::Result<Answer> {
    // Of several processes that create one file at once, more than one may say "created": the ledger is the same.
    let (path, existed) = global.place()?.look().await?;
    let session = global.open().await?;
    let identity = session.database.identity();
    let document = json!({
        "created": !existed, "ledger": identity.ledger.to_string(), "path": path,
        "zone": session.zone.name(), "scale": session.scale.get(),
    });
    let rows = [
        (
            if existed {
                "ledger exists"
            } else {
                "ledger created"
            },
            path,
        ),
        ("id", identity.ledger.to_string()),
        ("zone", session.zone.to_string()),
        ("scale", session.scale.get().to_string()),
    ];
    Ok(Answer::new(Exit::Done, document, list(&rows)))
}
