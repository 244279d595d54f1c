//! `greenroom down`: ends everything that this installation has at its providers.

use clap::Args;

use super::{Done, Settings, asked, counted};
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
        println!("There are no bots and no slots to remove.");
        down.leave().await;
        return Ok(());
    }
    let slots: usize = down.slots.values().sum();
    let [bots, slots, pools] =
        [(down.bots, "bot"), (slots, "slot"), (down.slots.len(), "pool")].map(|(number, noun)| counted(number, noun));
    println!("This command ends {bots} and removes {slots} of {pools}:");
    for (pool, count) in &down.slots {
        println!("  {pool:<20} {count}");
    }
    if down.unknown > 0 {
        println!("It also removes {} that only the providers have.", counted(down.unknown, "slot"));
    }
    for (pool, message) in &down.unreachable {
        println!("It cannot remove the slots of the pool {pool}: {message}.");
    }
    if !command.yes && !asked("Continue?")? {
        println!("Nothing was changed.");
        down.leave().await;
        return Ok(());
    }
    let on_machines = down.on_machines.clone();
    let down::Done { bots, slots } = down.remove().await?;
    println!("Ended {} and removed {}.", counted(bots, "bot"), counted(slots, "slot"));
    if on_machines.is_empty() {
        println!("The providers have no more slots of this installation.");
    }
    for pool in on_machines {
        println!(
            "The Auto Scaling groups of the pool {pool} keep their machines. To terminate the machines, scale the \
             groups to 0."
        );
    }
    Ok(())
}
