//! `greenroom down`: ends everything that this installation has at its providers.

use clap::Args;

use super::{Done, Settings, asked};
use crate::teardown::down::{self, Down};

#[derive(Debug, Args)]
pub struct Command {
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    settings: Settings,
}

pub async fn run(command: Command, before: &Settings) -> Done {
    let down = Down::prepare(&command.settings.over(before).load()?).await?;
    if down.is_empty() {
        println!("There are no slots and no bots: nothing is left to end.");
        down.leave().await;
        return Ok(());
    }
    let slots: usize = down.slots.values().sum();
    println!("This ends {} bots and removes {slots} slots of {} pools:", down.bots, down.slots.len());
    for (pool, count) in &down.slots {
        println!("  {pool:<20} {count}");
    }
    if down.unknown > 0 {
        println!("and {} that the providers have and no slot knows.", down.unknown);
    }
    for (pool, message) in &down.unreachable {
        println!("The slots of {pool} stay: {message}.");
    }
    if !command.yes && !asked("Go on?")? {
        println!("Nothing was changed.");
        down.leave().await;
        return Ok(());
    }
    let on_machines = down.on_machines.clone();
    let down::Done { bots, slots } = down.remove().await?;
    println!("Ended {bots} bots and removed {slots} slots.");
    if on_machines.is_empty() {
        println!("Nothing of this installation is left at its providers.");
    }
    for pool in on_machines {
        println!("The Auto Scaling groups of {pool} keep their machines: scale them to 0 to end these.");
    }
    Ok(())
}
