//! `greenroom serve`: serves until it is told to stop, and greets a newcomer with what to do next.

use tokio::signal::unix::{SignalKind, signal};

use super::Done;
use crate::config::Config;
use crate::server::Server;
use crate::server::first::First;

pub async fn serve(config: &Config) -> Done {
    // Before anything is opened, so that a signal that comes early is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let server = Server::start(config).await?;
    greet(config, &server);
    tell_what_is_not_built(config);
    tracing::info!(
        address = %server.address,
        database = config.database_shown(),
        version = env!("CARGO_PKG_VERSION"),
        "serving"
    );
    server.run(stop).await;
    Ok(())
}

/// Printed on standard output, apart from the log. What the first start made is shown here and nowhere else.
fn greet(config: &Config, server: &Server) {
    let url = &server.url;
    println!("Greenroom {} serves at {url}", env!("CARGO_PKG_VERSION"));
    println!("  database  {}", config.database_shown());
    println!("  docs      {url}/docs");
    let First { admin_token, user } = &server.first;
    if admin_token.is_some() || user.is_some() {
        println!("\nThis is the first start. Keep these: they are shown once and stored as hashes.");
    }
    if let Some(token) = admin_token {
        println!("  admin token  {token}");
    }
    if let Some((user, key)) = user {
        let key = key.reveal();
        println!("  API key      {key}  (of {}, who may run {} bots at once)", user.email, user.max_concurrent_bots);
        println!("\nAsk for a bot:");
        println!(
            "  curl -sS {url}/bots -H 'Authorization: Bearer {key}' \\\n    \
             -d '{{\"meeting_url\": \"https://meet.google.com/abc-defg-hij\"}}'"
        );
        println!("\nSee your bots:");
        println!("  curl -sS {url}/bots/active -H 'Authorization: Bearer {key}'");
    }
    println!("\nReady.");
}

/// A setting that is taken and has no effect yet is told, not passed over.
fn tell_what_is_not_built(config: &Config) {
    if config.redis.is_some() {
        tracing::warn!("redis is configured, but this version does not use it: commands travel by HTTP");
    }
    if config.file.is_some() && !config.pools.is_empty() {
        tracing::warn!("pools are configured, but this version starts no slots: bots are assigned by hand");
    }
}
