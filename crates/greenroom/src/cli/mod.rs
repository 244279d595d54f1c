//! The commands of the binary. Plain `greenroom` serves.

mod aws;
mod bench;
mod demo;
mod doctor;
mod down;
mod pools;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use secrecy::ExposeSecret;

use crate::config::{Complaints, Config, Sources};
use crate::providers::process::launch;
use crate::store::{ServerLock, Store, StoreError};
use crate::{api, telemetry};

/// Keeps meeting bots warm.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve. The same as no command at all.
    Serve(Settings),
    /// Look at the configuration without serving.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Examine what the server stands on, or tell of one slot or bot.
    Doctor(doctor::Command),
    /// Pools that are no longer configured.
    Pools {
        #[command(subcommand)]
        command: pools::Command,
    },
    /// End every bot and remove every slot of every pool. The server has to be stopped.
    Down(down::Command),
    /// Bring the database to the schema of this version, and do nothing else.
    Migrate(Settings),
    /// Print the OpenAPI document.
    Openapi,
    /// What pools of runners need at AWS.
    Aws {
        #[command(subcommand)]
        command: aws::Command,
    },
    /// Measure, each figure beside something named.
    Bench {
        #[command(subcommand)]
        command: bench::Command,
    },
    /// Run a bot's command and speak for it: greenroom-agent, carried along.
    Agent {
        /// The agent's own arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Play a bot in a pretend meeting: what the default pools run.
    DemoBot,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Tell everything that is wrong with it, or that nothing is.
    Check(Settings),
}

/// Where the configuration comes from: file, environment, flags, in rising order.
#[derive(Clone, Debug, Default, Args)]
struct Settings {
    /// The configuration file. Without it GREENROOM_CONFIG names one, or greenroom.toml is read, if it is there.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// How bots reach this server.
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// The database: sqlite:FILE or postgres://…
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Any key of the configuration, as in --set deploy.max_concurrent=2. May be given several times.
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
        Some(first) if first == "agent" => return greenroom_agent::run(arguments),
        Some(first) if first == launch::COMMAND => return launch::run(arguments),
        _ => {}
    }
    let cli = Cli::parse();
    let (before, command) = (cli.settings, cli.command.unwrap_or(Command::Serve(Settings::default())));
    match command {
        Command::DemoBot => return demo::play(),
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

/// Does it, with the settings that were given before the command.
async fn run(command: Command, before: Settings) -> ExitCode {
    let done = match command {
        Command::Serve(settings) => serve(settings.over(&before)).await,
        Command::Config { command: ConfigCommand::Check(settings) } => check(settings.over(&before)),
        Command::Doctor(command) => doctor::run(command, &before).await,
        Command::Pools { command } => pools::run(command, &before).await,
        Command::Down(command) => down::run(command, &before).await,
        Command::Migrate(settings) => migrate(settings.over(&before)).await,
        Command::Openapi => openapi(),
        Command::Aws { command } => aws::run(command, &before).await,
        Command::Bench { command } => bench::run(command).await,
        // Done before there was a runtime.
        Command::Agent { .. } | Command::DemoBot => Ok(()),
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
        tracing::warn!(%error, "server memory not hidden from other processes of its user");
    }
    serve::serve(&config).await
}

fn check(settings: Settings) -> Done {
    let config = settings.load()?;
    match &config.file {
        Some(file) => println!("{} is in order.", file.display()),
        None => println!("There is no configuration file; the defaults are in order."),
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
    println!("The database {} is at the schema of this version.", config.database_shown());
    Ok(())
}

/// Asks a person to go on. Without a terminal nobody can be asked.
fn asked(question: &str) -> Result<bool, Box<dyn std::error::Error>> {
    use std::io::{IsTerminal, Write};

    if !std::io::stdin().is_terminal() {
        return Err("nobody can be asked, because standard input is not a terminal: say --yes".into());
    }
    print!("{question} [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn openapi() -> Done {
    println!("{}", api::document().to_pretty_json()?);
    Ok(())
}
