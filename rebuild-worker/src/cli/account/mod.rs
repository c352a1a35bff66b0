//! `recoup account`: credit and limits ([`command`]), and what became of them.
//!
//! `show` and `list` read the figures that guard charges, and never lag; `entries` and `usage` read projections, brought to the
//! head first.

mod command;
mod entries;
mod list;
mod show;
mod usage;

use clap::Subcommand;
use recoup::AccountId;

use super::answer::Answer;
use super::session::Global;

/// What to do, or to ask.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Give credit. The same grant of an account is given once.
    Grant(command::Grant),
    /// Correct a balance, in either direction, whatever the floor.
    Adjust(command::Adjust),
    /// Set the floor, the monthly cap, or both; what is left out stays.
    Limit(command::Limit),
    /// Balance, what of it is available, and this month against its cap.
    Show {
        /// Whose.
        account: AccountId,
    },
    /// The statement: every movement of money with the balance after it, oldest first.
    Entries(entries::Args),
    /// Sums by day and kind, in the ledger's time zone.
    Usage(usage::Args),
    /// All accounts, in the order of their ids.
    List(list::Args),
}

pub(super) async fn run(global: &Global, verb: Verb) -> anyhow::Result<Answer> {
    let session = global.open().await?;
    match verb {
        Verb::Grant(args) => args.run(&session).await,
        Verb::Adjust(args) => args.run(&session).await,
        Verb::Limit(args) => args.run(&session).await,
        Verb::Show { account } => show::run(&session, account).await,
        Verb::Entries(args) => entries::run(&session, args).await,
        Verb::Usage(args) => usage::run(&session, args).await,
        Verb::List(args) => list::run(&session, args).await,
    }
}
