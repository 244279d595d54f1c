//! The commands, one file for each noun.

mod bot_start;
mod bot_wait;
mod bots;
mod deployments;
mod events;
mod health;
mod keepers;
mod login;
mod open;
mod operators;
pub mod pools;
mod slots;
mod text_streams;
mod top;
mod users;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::{CliError, Done, Exit, report};
use crate::options::{RemoteOptions, RemoteOptionsBefore};

#[derive(Debug, Subcommand)]
pub enum Remote {
    /// Start, list, follow, configure and stop bots.
    Bots {
        #[command(subcommand)]
        command: bots::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// List, explain, recover, drain and delete slots.
    Slots {
        #[command(subcommand)]
        command: slots::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// List the bots that wait for a slot.
    Queue {
        #[command(flatten)]
        command: operators::Queue,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Show slots that are being started, and images that are being pulled.
    Deployments {
        #[command(flatten)]
        command: deployments::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Add, list and change users, and replace their API keys.
    Users {
        #[command(subcommand)]
        command: users::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// List keepers, the background jobs of the server, or run one now.
    Keepers {
        #[command(subcommand)]
        command: keepers::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Watch pools, slots, bots, queue and keepers live in the terminal.
    Top {
        #[command(flatten)]
        command: crate::top::Options,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Follow what happens to bots.
    Events {
        #[command(flatten)]
        command: events::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// List what needs a person.
    Attention {
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// List what operators changed, newest first.
    Audit {
        #[command(flatten)]
        command: operators::Audit,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Check a token and keep it in a profile. The token is read from the terminal without echo, or from standard input.
    Login {
        #[command(flatten)]
        command: login::Login,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Remove a profile, with its token.
    Logout {
        #[command(flatten)]
        command: login::Logout,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Show the server, the profile and whose token is used.
    Whoami {
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Open the dashboard, at a bot, a slot, a pool or a page.
    Open {
        #[command(flatten)]
        command: open::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// Check that the server is ready. Needs no token; made for health checks of containers.
    Health {
        #[command(flatten)]
        options: RemoteOptions,
    },
}

impl Remote {
    /// Does what the command says.
    pub fn main(self, before: RemoteOptionsBefore) -> ExitCode {
        main(async move {
            match self {
                Remote::Bots { command, options } => command.run(&options.over(before)).await,
                Remote::Slots { command, options } => command.run(&options.over(before)).await,
                Remote::Queue { command, options } => command.run(&options.over(before)).await,
                Remote::Deployments { command, options } => command.run(&options.over(before)).await,
                Remote::Users { command, options } => command.run(&options.over(before)).await,
                Remote::Keepers { command, options } => command.run(&options.over(before)).await,
                Remote::Top { command, options } => top::run(command, &options.over(before)).await,
                Remote::Events { command, options } => command.run(&options.over(before)).await,
                Remote::Attention { options } => operators::attention(&options.over(before)).await,
                Remote::Audit { command, options } => command.run(&options.over(before)).await,
                Remote::Login { command, options } => command.run(&options.over(before)).await,
                Remote::Logout { command, options } => command.run(&options.over(before)),
                Remote::Whoami { options } => login::whoami(&options.over(before)).await,
                Remote::Open { command, options } => command.run(&options.over(before)).await,
                Remote::Health { options } => health::run(&options.over(before)).await,
            }
        })
    }
}

/// Runs a command to its exit code. These commands wait for the network most of the time: one thread is enough.
pub fn main(command: impl Future<Output = Done>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(command);
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(CliError::failed(format!("cannot start: {error}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// Does something for each of several names. An error does not keep the others from being tried, and neither does a
/// reader that has gone; Ctrl-C does.
async fn for_each<'a>(names: &'a [String], mut action: impl AsyncFnMut(&'a str) -> Done) -> Done {
    let mut all = Ok(());
    for name in names {
        let done = action(name).await;
        let is_interrupted = done.as_ref().is_err_and(|error| error.exit == Exit::Interrupted);
        all = both(all, done);
        if is_interrupted {
            break;
        }
    }
    all
}

/// How a command ends that did two things. The first error is the command's, and the other one is told here. Ctrl-C
/// is more than an error, and a reader that has gone is less than one.
fn both(first: Done, second: Done) -> Done {
    let (first, second) = match (first, second) {
        (Err(first), Err(second)) => (first, second),
        (first, second) => return first.and(second),
    };
    let (ends, told) = match (first.exit, second.exit) {
        (Exit::NoReader, _) | (_, Exit::Interrupted) => (second, first),
        _ => (first, second),
    };
    report(&told);
    Err(ends)
}

/// Reads `KEY=VALUE` arguments into a JSON object. Values that are JSON are taken as such, all others as text.
fn settings(pairs: &[String]) -> Result<serde_json::Value, CliError> {
    let mut object = serde_json::Map::new();
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(CliError::usage(format!("`{pair}` is not KEY=VALUE")));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.to_owned()));
        object.insert(key.to_owned(), value);
    }
    Ok(serde_json::Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::for_each;
    use crate::error::{CliError, Exit};

    /// Which names were tried, and the exit code, if the action ends so for each name.
    async fn tried(ends: &[Option<Exit>]) -> (usize, Option<Exit>) {
        let names: Vec<String> = (0..ends.len()).map(|number| number.to_string()).collect();
        let mut count = 0;
        let done = for_each(&names, async |_| {
            count += 1;
            ends[count - 1].map_or(Ok(()), |exit| Err(CliError::new(exit, "of a test")))
        });
        let exit = done.await.err().map(|error| error.exit);
        (count, exit)
    }

    #[tokio::test]
    async fn all_names_are_tried_but_not_after_ctrl_c() {
        let (failed, missing) = (Some(Exit::Failed), Some(Exit::NotFound));
        let (gone, interrupted) = (Some(Exit::NoReader), Some(Exit::Interrupted));
        assert_eq!(tried(&[None, None]).await, (2, None));
        assert_eq!(tried(&[failed, missing, None]).await, (3, failed));
        assert_eq!(tried(&[gone, gone, None]).await, (3, gone));
        assert_eq!(tried(&[gone, missing, None]).await, (3, missing));
        assert_eq!(tried(&[missing, gone]).await, (2, missing));
        assert_eq!(tried(&[failed, interrupted, None]).await, (2, interrupted));
    }
}
