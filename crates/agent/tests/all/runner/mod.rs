//! The agent on a machine of a runner pool.

mod ending;
mod registering;
mod running;
pub mod side;

use std::path::Path;

use tokio::process::Command;

use crate::agent::{Agent, bare};
use crate::server::Server;
use side::{INSTANCE, POOL_TOKEN};

/// The output of the command that ends the machine.
const MACHINE_ENDS: &str = "the machine ends";

/// The agent of a runner, with its folders below this one.
pub fn for_runner(server: &Server, folder: &Path) -> Command {
    let mut command = bare();
    command.env("GREENROOM_URL", server.url()).env("GREENROOM_RUNNER_TOKEN", POOL_TOKEN);
    command.env("GREENROOM_INSTANCE_ID", INSTANCE).env("GREENROOM_RUNNER_DIR", folder);
    command.env("GREENROOM_METADATA_URL", server.url());
    command
}

/// Starts the agent with a bot that is a script for sh. It always sets an end command, because the default one would
/// end this machine.
pub fn start(command: Command, options: &[&str], script: &str) -> Agent {
    let end_command = format!("echo {MACHINE_ENDS}");
    let ending = ["runner", "--end-command", &end_command];
    Agent::start_exactly(command, &[&ending, options, &["--", "sh", "-c", script]].concat())
}

/// The existing folders of bots.
pub fn folders(below: &Path) -> Vec<String> {
    let names = std::fs::read_dir(below).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("greenroom-bot-")).collect()
}
