//! `greenroom pools remove`: ends a pool that is no longer configured.

use clap::{Args, Subcommand};

use super::{Done, Settings, asked, counted};
use crate::teardown::pool::PoolRemoval;

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Remote(::cli::pools::Command),
    /// Remove a pool that is no longer in the configuration: first its slots at the provider, then its records. This
    /// command works on the database, not on a server.
    Remove(Remove),
}

#[derive(Debug, Args)]
pub struct Remove {
    /// The name of the pool.
    name: String,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// End the bots that still run in its slots, instead of waiting until they end.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    settings: Settings,
}

pub async fn run(command: Remove, before: &Settings) -> Done {
    let Remove { name, yes, force, settings } = command;
    let removal = PoolRemoval::prepare(&settings.over(before).load()?, &name).await?;
    let bots = match (removal.busy, force) {
        (0, _) => String::new(),
        (busy, true) => format!(" and {}, which the command ends", counted(busy, "bot")),
        (busy, false) => format!(" and {}; the command waits until all bots have ended", counted(busy, "bot")),
    };
    println!("The pool {name} ({}) has {}{bots}.", removal.provider(), counted(removal.slots, "slot"));
    if !yes && !asked("Delete the slots at the provider, and then the pool?")? {
        println!("Nothing was changed.");
        return Ok(());
    }
    let waiting = |busy| {
        println!("Waiting for {} to end. With --force, the command ends all bots at once.", counted(busy, "bot"))
    };
    let removed = removal.remove(force, waiting).await?;
    println!("Removed {} and the pool {name}.", counted(removed, "slot"));
    Ok(())
}
