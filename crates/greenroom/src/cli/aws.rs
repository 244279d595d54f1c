//! `greenroom aws`: what pools of runners need at AWS, and the token with which machines become runners.

use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret;

use super::{Done, Settings};
use crate::config::Config;
use crate::lifecycle::tokens::Tokens;
use crate::providers::ec2::runners;
use crate::server::first_start::SIGNING_SECRET;
use crate::store::{Store, StoreInspection};

/// Longer than a database takes that answers at all.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create the missing table, queues and Auto Scaling groups, and correct settings of existing ones that differ.
    Init(Of),
    /// Print the resources that `init` creates, without calling AWS.
    Describe {
        /// Print a CloudFormation template instead of a list.
        #[arg(long)]
        cloudformation: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Print the IAM policy that the server needs.
    Policy {
        /// Print the policy that `greenroom aws init` needs instead.
        #[arg(long)]
        init: bool,
        #[command(flatten)]
        of: Of,
    },
    /// Print the token with which machines register as runners of a pool. Set it as GREENROOM_RUNNER_TOKEN on each
    /// machine.
    RunnerToken {
        /// The pool whose token to print. Its provider must be ec2.
        #[arg(long, value_name = "NAME")]
        pool: String,
        #[command(flatten)]
        settings: Settings,
    },
}

#[derive(Debug, Args)]
pub struct Of {
    /// Only the resources of this pool. Default: the resources of all pools with the provider ec2.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

pub async fn run(command: Command, before: &Settings) -> Done {
    match command {
        Command::Init(of) => {
            for settings in configs(of, before)? {
                print!("{}", aws::init(&settings).await?);
            }
        }
        Command::Describe { cloudformation, of } => {
            for settings in configs(of, before)? {
                let plan = aws::describe(&settings);
                if cloudformation {
                    println!("{:#}", plan.cloudformation());
                } else {
                    print!("{plan}");
                }
            }
        }
        Command::Policy { init, of } => {
            for settings in configs(of, before)? {
                println!("{:#}", if init { aws::init_policy(&settings) } else { aws::policy(&settings) });
            }
        }
        Command::RunnerToken { pool, settings } => {
            println!("{}", runner_token(&settings.over(before).load()?, &pool).await?)
        }
    }
    Ok(())
}

/// What is asked for, each place once.
fn configs(of: Of, before: &Settings) -> Result<Vec<aws::Settings>, Box<dyn std::error::Error>> {
    let config = of.settings.over(before).load()?;
    let (configs, whose) = runners::shared(&config.pools);
    let configs = match of.pool {
        None if configs.is_empty() => return Err("no pool has the provider ec2".into()),
        None => configs,
        Some(pool) => vec![configs[*whose.get(&pool).ok_or_else(|| no_runners(&config, &pool))?].clone()],
    };
    // Whose slots claim runners is nothing that is made at AWS.
    Ok(configs.into_iter().map(|(_, config)| config.settings("")).collect())
}

fn no_runners(config: &Config, pool: &str) -> String {
    match config.pools.iter().find(|known| known.name == pool) {
        Some(known) => format!("the pool {pool} has the provider {}, not ec2", known.provider.as_str()),
        None => format!("the configuration has no pool {pool}"),
    }
}

async fn runner_token(config: &Config, pool: &str) -> Result<String, Box<dyn std::error::Error>> {
    let (_, whose) = runners::shared(&config.pools);
    if !whose.contains_key(pool) {
        return Err(no_runners(config, pool).into());
    }
    const NOT_YET: &str = "the database has no signing secret yet; the first start of the server creates it";
    let inspected = tokio::time::timeout(TIMEOUT, Store::inspect(config.database.expose_secret())).await;
    let inspected = inspected.map_err(|_| "the database does not answer")??;
    let StoreInspection { store, .. } = inspected.filter(|inspected| inspected.found > 0).ok_or(NOT_YET)?;
    let secret = store.setting(SIGNING_SECRET).await?;
    store.close().await;
    Ok(Tokens::new(&secret.ok_or(NOT_YET)?).make_pool(pool))
}
