//! The commands of the binary. Plain `greenroom` serves. Commands that talk to a server are in the crate `cli`.

mod aws;
mod bench;
mod doctor;
mod down;
mod pools;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use ::cli::{Remote, RemoteOptions, RemoteOptionsBefore};
use clap::{Args, CommandFactory, Parser, Subcommand};
use secrecy::ExposeSecret;

use crate::config::{Complaints, Config, Sources};
use crate::providers::process::launch;
use crate::store::{ServerLock, Store, StoreError};
use crate::{api, telemetry};

/// Run meeting bots in slots that are ready before the bots are needed.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    options: RemoteOptionsBefore,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server. This is the default when no command is given.
    Serve(Settings),
    /// Check the configuration without starting the server.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Check everything that the server depends on, or explain the state of one slot or one bot.
    Doctor(doctor::Command),
    #[command(flatten)]
    Remote(Remote),
    /// List, show, resize and probe pools, or remove one that is no longer in the configuration.
    Pools {
        #[command(subcommand)]
        command: pools::Command,
        #[command(flatten)]
        options: RemoteOptions,
    },
    /// End all bots and delete all slots of all pools. Stop the server first.
    Down(down::Command),
    /// Migrate the database to the schema of this version, then exit.
    Migrate(Settings),
    /// Print the OpenAPI document.
    Openapi,
    /// Create or describe the AWS resources of runner pools, and print their policies and tokens.
    Aws {
        #[command(subcommand)]
        command: aws::Command,
    },
    /// Run a benchmark. Most benchmarks compare each result with a named baseline.
    Bench {
        #[command(subcommand)]
        command: bench::Command,
    },
    /// Run the agent that is built into this program. It takes the same arguments as greenroom-agent.
    Agent {
        /// The arguments of the agent. `greenroom agent --help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Run the demo bot, which simulates a meeting. The default pools run this command.
    DemoBot,
    /// Print completions for a shell. They also complete ids, pools and slots from the server.
    Completions(::cli::complete::Completions),
    /// Print the man page of a command, or write all pages into a folder.
    Man(::cli::manual::Man),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Read the configuration and print every error in it, or a summary if it is valid.
    Check(Settings),
}

/// Sources of the configuration. Flags override environment variables, which override the file.
#[derive(Clone, Debug, Default, Args)]
struct Settings {
    /// The configuration file. Default: the file that GREENROOM_CONFIG names, else greenroom.toml if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address and port on which the server listens.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The URL at which bots reach the server.
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// The URL of the database: sqlite:FILE or postgres://…
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Set any configuration key, for example --set deploy.max_concurrent=2. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    /// These, over those that were given before the command.
    fn over(self, before: &Settings) -> Self {
        Self {
            config: self.config.or_else(|| before.config.clone()),
            listen: self.listen.or_else(|| before.listen.clone()),
            public_url: self.public_url.or_else(|| before.public_url.clone()),
            database: self.database.or_else(|| before.database.clone()),
            set: before.set.iter().cloned().chain(self.set).collect(),
        }
    }

    fn load(self) -> Result<Config, Complaints> {
        let mut flags = Vec::new();
        for (key, value) in [("listen", self.listen), ("public_url", self.public_url), ("database", self.database)] {
            flags.extend(value.map(|value| format!("{key}={value}")));
        }
        flags.extend(self.set);
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let file = self.config.or_else(|| std::env::var_os("GREENROOM_CONFIG").map(PathBuf::from));
        Config::load(&Sources { file, variables: variables.collect(), flags })
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // These two have a command line of their own, and the agent a runtime.
    match arguments.next() {
        Some(first) if first == "agent" => return greenroom_agent::run(arguments.collect()),
        Some(first) if first == launch::COMMAND => return launch::run(arguments),
        _ => {}
    }
    ::cli::complete::answer(Cli::command);
    let cli = Cli::parse();
    let (before, command) = (cli.settings, cli.command.unwrap_or(Command::Serve(Settings::default())));
    let command = match command {
        Command::Remote(command) => return command.main(cli.options),
        Command::Pools { command: pools::Command::Remote(command), options } => {
            return command.main(options, cli.options);
        }
        Command::Completions(command) => return finish(command.run()),
        Command::Man(command) => return finish(command.run(Cli::command())),
        Command::Pools { options, .. } if options.is_given() => refuse_options(),
        _ if cli.options.is_given() => refuse_options(),
        command => command,
    };
    match command {
        Command::DemoBot => return greenroom_agent::play_demo_bot(),
        Command::Bench { command: bench::Command::Bot } => return crate::bench::start::report_start(),
        // On a runtime of its own, with one thread.
        Command::Bench { command: bench::Command::Load } => return crate::bench::load::main(),
        _ => {}
    }
    // Placement has a thread of its own, and its database another process: with as many more as there are processors they
    // would wait for each other.
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get().saturating_sub(1).max(1));
    match tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(run(command, before));
            // What hangs in a call of the system, such as opening a file that is far away, is not waited for.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            eprintln!("greenroom: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The reference of all commands, in Markdown.
pub fn reference() -> String {
    ::cli::manual::markdown(Cli::command())
}

fn finish(done: ::cli::error::Done) -> ExitCode {
    done.map_or_else(|error| ::cli::error::report(&error), |()| ExitCode::SUCCESS)
}

/// Options that a command would ignore are a mistake.
fn refuse_options() -> ! {
    let words = "--server, --token, --profile and --json are for commands that talk to a server; this command does not";
    Cli::command().error(clap::error::ErrorKind::ArgumentConflict, words).exit()
}

/// Does it, with the settings that were given before the command.
async fn run(command: Command, before: Settings) -> ExitCode {
    let done = match command {
        Command::Serve(settings) => serve(settings.over(&before)).await,
        Command::Config { command: ConfigCommand::Check(settings) } => check(settings.over(&before)),
        Command::Doctor(command) => doctor::run(command, &before).await,
        Command::Pools { command: pools::Command::Remove(command), .. } => pools::run(command, &before).await,
        Command::Down(command) => down::run(command, &before).await,
        Command::Migrate(settings) => migrate(settings.over(&before)).await,
        Command::Openapi => openapi(),
        Command::Aws { command } => aws::run(command, &before).await,
        Command::Bench { command } => bench::run(command).await,
        // Done before there was a runtime.
        Command::Agent { .. }
        | Command::DemoBot
        | Command::Remote(_)
        | Command::Pools { .. }
        | Command::Completions(_)
        | Command::Man(_) => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greenroom: {error}");
            ExitCode::FAILURE
        }
    }
}

type Done = Result<(), Box<dyn std::error::Error>>;

async fn serve(settings: Settings) -> Done {
    let config = settings.load()?;
    telemetry::log();
    // Bots of the same user must not read the secrets in its environment and memory.
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "server memory not protected from other processes of the same user");
    }
    serve::serve(&config).await
}

fn check(settings: Settings) -> Done {
    let config = settings.load()?;
    match &config.file {
        Some(file) => println!("{} is valid.", file.display()),
        None => println!("There is no configuration file. The defaults apply."),
    }
    println!("  listen    {}", config.listen);
    println!("  database  {}", config.database_shown());
    for pool in &config.pools {
        println!(
            "  pool      {} ({}, {}, at most {})",
            pool.name,
            pool.platform,
            pool.provider.as_str(),
            pool.max_slots
        );
    }
    Ok(())
}

async fn migrate(settings: Settings) -> Done {
    let config = settings.load()?;
    telemetry::log();
    let database = config.database.expose_secret();
    match ServerLock::take(database).await {
        Ok(_lock) => Store::open(database).await?.close().await,
        // A server that runs has migrated it; one of another version must be stopped first.
        Err(in_use @ StoreError::InUse { .. }) => {
            let inspected = Store::inspect(database).await?;
            if inspected.is_none_or(|inspected| inspected.found != inspected.known) {
                return Err(in_use.into());
            }
        }
        Err(error) => return Err(error.into()),
    }
    println!("The database {} has the schema of this version.", config.database_shown());
    Ok(())
}

/// Returns a number with its noun, such as `1 bot` or `2 bots`.
fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Asks a person to go on. Without a terminal nobody can be asked.
fn asked(question: &str) -> Result<bool, Box<dyn std::error::Error>> {
    use std::io::{IsTerminal, Write};

    if !std::io::stdin().is_terminal() {
        return Err("standard input is not a terminal, so the command cannot ask for confirmation: use --yes".into());
    }
    print!("{question} [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn openapi() -> Done {
    use std::io::Write;

    let document = api::document().to_pretty_json()?;
    match writeln!(std::io::stdout(), "{document}") {
        // As with `| head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
