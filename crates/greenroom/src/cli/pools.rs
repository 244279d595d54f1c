//! `greenroom pools remove`: ends a pool that is no longer configured.

use clap::{Args, Subcommand};

use super::{Done, Settings, asked};
use crate::teardown::pool::PoolRemoval;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Remove a pool that is no longer in the configuration: first its slots at the provider, then its records.
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

pub async fn run(command: Command, before: &Settings) -> Done {
    let Command::Remove(Remove { name, yes, force, settings }) = command;
    let removal = PoolRemoval::prepare(&settings.over(before).load()?, &name).await?;
    let bots = match (removal.busy, force) {
        (0, _) => String::new(),
        (busy, true) => format!("; {busy} have a bot, which is ended"),
        (busy, false) => format!("; {busy} have a bot, whose end is waited for"),
    };
    println!("The pool {name} ({}) has {} slots{bots}.", removal.provider(), removal.slots);
    if !yes && !asked("Delete them at the provider, and forget the pool?")? {
        println!("Nothing was changed.");
        return Ok(());
    }
    let waiting = |busy| println!("Waiting for {busy} bots to end; --force would end them.");
    let removed = removal.remove(force, waiting).await?;
    println!("Removed {removed} slots and the pool {name}.");
    Ok(())
}
