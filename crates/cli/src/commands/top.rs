//! `top`: the live view for a person, or the same messages as JSON for a program.

use serde_json::{Value, json};

use crate::error::{CliError, Done, Exit};
use crate::options::{RemoteOptions, Target};
use crate::stream::{EventStream, Reconnect};
use crate::top::{self, Options, TopError};

pub async fn run(command: Options, options: &RemoteOptions) -> Done {
    // Tells a missing token and the API key of a user before anything is drawn.
    let client = options.operator()?;
    if options.json {
        return print_messages(&client, command.once, options).await;
    }
    let Target { server, token, .. } = options.target()?;
    let token = token.as_ref().map(|token| token.reveal()).unwrap_or_default();
    top::run(&server, token, command).await.map_err(CliError::from)
}

/// Prints the snapshot and the changes, one object per line: `{"event": "snapshot", "data": …}`.
async fn print_messages(client: &crate::client::Client, once: bool, options: &RemoteOptions) -> Done {
    let out = options.output();
    let mut reconnect = Reconnect::default();
    loop {
        match EventStream::open(client, &["admin", "live"], &[], None).await {
            Ok(mut stream) => {
                while let Some(message) = stream.next().await {
                    reconnect.connected();
                    let data: Value = serde_json::from_str(&message.data).unwrap_or(Value::String(message.data));
                    out.json_line(&json!({"event": message.event, "data": data}))?;
                    if once {
                        return Ok(());
                    }
                }
                out.note("The connection was lost; trying again.");
                reconnect.wait(None).await?;
            }
            Err(error) => reconnect.wait(Some(error)).await?,
        }
    }
}

impl From<TopError> for CliError {
    fn from(error: TopError) -> Self {
        let exit = match error {
            TopError::NotAllowed { .. } => Exit::NotAllowed,
            TopError::NoSuchPool { .. } => Exit::NotFound,
            TopError::Unreachable { .. } => Exit::Unreachable,
            TopError::Other(_) => Exit::Failed,
        };
        CliError::new(exit, error.to_string())
    }
}
