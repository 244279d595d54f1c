//! Which server, and with which token: from flags, the environment, or a profile.

use clap::Args;

use crate::client::{Client, Token};
use crate::error::{CliError, Exit};
use crate::profiles::Profiles;
use crate::show::Output;

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7700";

/// The options of every command that talks to a server.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Server and output")]
pub struct RemoteOptions {
    /// The URL of the server. Default: GREENROOM_SERVER, else the profile's, else http://127.0.0.1:7700.
    #[arg(long, value_name = "URL", global = true)]
    pub server: Option<String>,
    /// The admin token or API key. Default: GREENROOM_TOKEN, else the profile's. Other users of this machine can see
    /// the flags of a command, so prefer the variable or `greenroom login`.
    #[arg(long, value_name = "TOKEN", global = true)]
    pub token: Option<Token>,
    /// The profile to use. With this flag, GREENROOM_SERVER and GREENROOM_TOKEN do not count. Default:
    /// GREENROOM_PROFILE, else the one of the last `greenroom login`.
    #[arg(long, value_name = "NAME", global = true)]
    pub profile: Option<String>,
    /// Print JSON, as the API answers it; one object per line where a command follows something.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The same options before the command, as in `greenroom --server URL bots list`.
#[derive(Clone, Debug, Default, Args)]
pub struct RemoteOptionsBefore {
    #[arg(long = "server", value_name = "URL", hide = true)]
    server_before: Option<String>,
    #[arg(long = "token", value_name = "TOKEN", hide = true)]
    token_before: Option<Token>,
    #[arg(long = "profile", value_name = "NAME", hide = true)]
    profile_before: Option<String>,
    #[arg(long = "json", hide = true)]
    json_before: bool,
}

impl RemoteOptionsBefore {
    pub fn is_given(&self) -> bool {
        self.server_before.is_some() || self.token_before.is_some() || self.profile_before.is_some() || self.json_before
    }
}

/// A server, and the token to show it.
#[derive(Debug)]
pub struct Target {
    pub server: String,
    pub token: Option<Token>,
    /// The profile that the server or the token comes from.
    pub profile: Option<String>,
}

impl RemoteOptions {
    /// These, over those that were given before the command.
    pub fn over(self, before: RemoteOptionsBefore) -> Self {
        Self {
            server: self.server.or(before.server_before),
            token: self.token.or(before.token_before),
            profile: self.profile.or(before.profile_before),
            json: self.json || before.json_before,
        }
    }

    pub fn is_given(&self) -> bool {
        self.server.is_some() || self.token.is_some() || self.profile.is_some() || self.json
    }

    pub fn output(&self) -> Output {
        Output::new(self.json)
    }

    /// The name of the profile that was asked for.
    pub fn profile_asked(&self) -> Option<String> {
        self.profile.clone().or_else(|| variable("GREENROOM_PROFILE"))
    }

    /// The server that was asked for, without looking at a profile.
    pub fn server_asked(&self) -> Option<String> {
        self.server.clone().or_else(|| self.variable("GREENROOM_SERVER"))
    }

    /// A variable of the environment. A profile that is named on the line is nearer than what a shell has exported
    /// before, and the two must not be mixed: a token would go to the server of another.
    fn variable(&self, name: &str) -> Option<String> {
        if self.profile.is_some() { None } else { variable(name) }
    }

    pub fn target(&self) -> Result<Target, CliError> {
        let token = self.token.clone().or_else(|| self.variable("GREENROOM_TOKEN").map(Token::from));
        let (server, asked) = (self.server_asked(), self.profile_asked());
        // With both given, a broken profile file is no obstacle.
        if let (Some(server), Some(token), None) = (&server, &token, &asked) {
            return Ok(Target { server: trimmed(server), token: Some(token.clone()), profile: None });
        }
        let profiles = Profiles::read()?;
        let found = profiles.find(asked.as_deref());
        if let (Some(name), None) = (&asked, &found) {
            let next = format!("Sign in with `greenroom login --profile {name}`. Profiles: {}.", profiles.names());
            return Err(CliError::not_found(format!("there is no profile {name}")).next(next));
        }
        let Some((name, profile)) = found else {
            let server = server.unwrap_or_else(|| DEFAULT_SERVER.to_owned());
            return Ok(Target { server: trimmed(&server), token, profile: None });
        };
        let server = trimmed(&server.unwrap_or_else(|| profile.server.clone()));
        // A token goes only to the server that it was given for.
        let is_its_server = server == trimmed(&profile.server);
        let token = token.or_else(|| is_its_server.then(|| profile.token.clone()));
        Ok(Target { server, token, profile: is_its_server.then_some(name) })
    }

    /// A client without a token, if there is none.
    pub fn any_client(&self) -> Result<Client, CliError> {
        let Target { server, token, .. } = self.target()?;
        Client::new(&server, token)
    }

    /// A client for calls that need a token.
    pub fn client(&self) -> Result<Client, CliError> {
        let Target { server, token, .. } = self.target()?;
        let is_known = token.is_some();
        // First, because it refuses a server that must not be shown.
        let client = Client::new(&server, token)?;
        match is_known {
            true => Ok(client),
            false => Err(CliError::new(Exit::NotAllowed, format!("there is no token for the server {server}"))
                .next("Sign in with `greenroom login`, or set GREENROOM_TOKEN to the admin token or an API key.")),
        }
    }

    /// A client for calls that only operators may make.
    pub fn operator(&self) -> Result<Client, CliError> {
        let client = self.client()?;
        if client.is_operator() {
            return Ok(client);
        }
        Err(CliError::new(Exit::NotAllowed, "this command is for operators, and the token is the API key of a user")
            .next("Use the admin token: `greenroom login --profile operator`, or set GREENROOM_TOKEN."))
    }
}

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One spelling for each server, so that they can be compared.
pub fn trimmed(server: &str) -> String {
    let server = server.trim().trim_end_matches('/');
    if server.contains("://") { server.to_owned() } else { format!("http://{server}") }
}
