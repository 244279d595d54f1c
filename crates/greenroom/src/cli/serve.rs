//! `greenroom serve`: serves until it is told to stop, and greets a newcomer with what to do next.

use std::io::{self, Write};

use tokio::signal::unix::{SignalKind, signal};

use super::Done;
use crate::config::Config;
use crate::server::Server;
use crate::server::first_start::FirstStart;

pub async fn serve(config: &Config) -> Done {
    // Before anything is opened, so that a signal that comes early is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut stop = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let server = tokio::select! {
        server = Server::start(config, |url, first| {
            let greeted = print_start(config, url, first);
            // Without anything that is shown only once, nobody needs to read it.
            if first.is_empty() { Ok(()) } else { greeted }
        }) => server?,
        () = stop() => return Ok(()),
    };
    if config.public_url.is_none() && !server.address.ip().is_loopback() {
        tracing::warn!("public_url not set; bots on other machines cannot reach this server");
    }
    tracing::info!(
        address = %server.address,
        database = config.database_shown(),
        version = env!("CARGO_PKG_VERSION"),
        "server started"
    );
    server.run(stop).await?;
    Ok(())
}

/// Printed on standard output, apart from the log. What the first start made is shown here and nowhere else.
fn print_start(config: &Config, url: &str, first: &FirstStart) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Greenroom {} serves at {url}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  dashboard  {url}/")?;
    writeln!(out, "  docs       {url}/docs")?;
    writeln!(out, "  database   {}", config.database_shown())?;
    let FirstStart { admin_token, user } = first;
    if !first.is_empty() {
        writeln!(
            out,
            "\nThis is the first start. Save these secrets: the server shows them once, and stores only hashes."
        )?;
    }
    if let Some(token) = admin_token {
        writeln!(out, "  admin token  {token}")?;
    }
    if let Some((user, key)) = user {
        let (key, limit) = (key.reveal(), user.max_concurrent_bots);
        writeln!(out, "  API key      {key}  (user {}, at most {limit} bots at once)", user.email)?;
        writeln!(out, "\nOpen the dashboard and sign in with the admin token or the API key.")?;
        writeln!(out, "\nRequest a bot:")?;
        writeln!(
            out,
            "  curl -sS {url}/bots -H 'Authorization: Bearer {key}' \\\n    \
             -d '{{\"meeting_url\": \"https://meet.google.com/abc-defg-hij\"}}'"
        )?;
        writeln!(out, "\nList your bots:")?;
        writeln!(out, "  curl -sS {url}/bots/active -H 'Authorization: Bearer {key}'")?;
        writeln!(
            out,
            "\nOr from another terminal: greenroom login --server {url}, then greenroom bots start LINK --wait"
        )?;
    }
    writeln!(out, "\nReady.")?;
    out.flush()
}
