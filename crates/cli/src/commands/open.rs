//! `open`: the dashboard, at the thing that was named.

use std::process::{Command as Process, Stdio};

use clap::Args;
use uuid::Uuid;

use crate::client::Client;
use crate::complete;
use crate::error::{CliError, Done, Exit};
use crate::ids;
use crate::options::RemoteOptions;
use serde_json::json;

const PAGES: [&str; 9] = ["bots", "slots", "pools", "queue", "lobby", "charts", "audit", "keepers", "start"];

#[derive(Debug, Args)]
pub struct Command {
    /// A bot (id, or the beginning of it), a slot, a pool, or a page: bots, slots, pools, queue, lobby, charts, audit,
    /// keepers, start. Default: the overview.
    #[arg(value_name = "THING", add = complete::things())]
    thing: Option<String>,
    /// Print the address only.
    #[arg(long)]
    print: bool,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.any_client()?, options.output());
        let route = match self.thing.as_deref() {
            None | Some("" | "overview") => "/".to_owned(),
            Some(page) if PAGES.contains(&page) => format!("/{page}"),
            Some(thing) => route(&client, thing).await?,
        };
        let address = format!("{}/#{route}", client.server);
        if out.json {
            out.answer(&json!({"url": address}))?;
        } else {
            out.line(&address)?;
        }
        if !self.print && !out.json && out.is_terminal {
            browse(&address);
        }
        Ok(())
    }
}

async fn route(client: &Client, thing: &str) -> Result<String, CliError> {
    if thing.parse::<Uuid>().is_ok() {
        return Ok(format!("/bots/{thing}"));
    }
    let unknown = || {
        CliError::not_found(format!("there is no bot, slot, pool or page {thing}"))
            .next(format!("The pages are {}.", PAGES.join(", ")))
    };
    if client.token().is_none() {
        return Err(unknown().next("With a token, the command finds bots, slots and pools: `greenroom login`."));
    }
    let is_missing = |error: &CliError| error.exit == Exit::NotFound;
    match ids::bot(client, thing).await {
        Err(error) if is_missing(&error) => {}
        found => return Ok(format!("/bots/{}", found?)),
    }
    if !client.is_operator() {
        return Err(unknown());
    }
    match ids::pool(client, thing).await {
        Err(error) if is_missing(&error) => {}
        found => return Ok(format!("/pools/{}", found?)),
    }
    match ids::slot(client, thing).await {
        Err(error) if is_missing(&error) => Err(unknown()),
        found => Ok(format!("/slots/{}", found?)),
    }
}

/// Opens a browser where there is a desktop. Elsewhere the address on the terminal is enough.
fn browse(address: &str) {
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let opener = match (cfg!(target_os = "macos"), has_desktop) {
        (true, _) => "open",
        (false, true) => "xdg-open",
        (false, false) => return,
    };
    let mut command = Process::new(opener);
    let _ = command.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
}
