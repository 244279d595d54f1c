//! Parses the command line of the agent. Everything after the agent's own options is the bot's command. The agent
//! starts it directly, without a shell.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

pub const HELP: &str = "\
Run a bot's command in a slot and report to the Greenroom server for the bot.

Usage: greenroom-agent [options] -- command [arguments…]
       greenroom-agent runner [options] -- command [arguments…]

`greenroom-agent runner` is the agent of a machine in a runner pool. It registers the machine and runs
the command for each bot in a new folder. When the runner has to end, it ends the machine.

Options:
      --leave-grace <duration>  Time between the command \"leave\" and SIGTERM [default: 20s]
      --kill-grace <duration>   Time between SIGTERM and SIGKILL [default: 10s]
      --report-for <duration>   Time to retry the last reports after the command ended [default: 15m]
      --prewarm                 Start the command before there is a bot. The agent waits for a bot only while the
                                command is ready
      --ready-timeout <duration>
                                With --prewarm: time for the command to become ready [default: 60s]
      --max-warm-age <duration> With --prewarm: replace a command that has been ready for longer before it gets
                                a bot; 0s: never [default: 30m]
      --end-command <command>   Runner only: the command that ends the machine, split at spaces;
                                \"none\" runs no command [default: shutdown -h now]
  -h, --help                    Print this help
  -V, --version                 Print the version

A duration is a number with the unit ms, s, m or h, for example 20s.

Environment:
  BOT_DATA                The bot's data as one JSON object. The agent runs the command once and exits with
                          the exit code of the command.
  GREENROOM_URL           Without BOT_DATA: the URL of the server. The agent waits there for bots and runs
                          the command for one bot after another.
  GREENROOM_SLOT_TOKEN    The slot token that the agent sends to GREENROOM_URL.
  GREENROOM_CONTAINER_ID  The id of the container. Default: HOSTNAME, if the agent runs in a container.
  GREENROOM_PREWARM       1: the same as --prewarm. The server sets it in pools with `prewarm = true`, together
                          with GREENROOM_READY_TIMEOUT_MS and GREENROOM_MAX_WARM_AGE_MS. Options take precedence.

Environment of a runner:
  GREENROOM_URL           The URL of the server.
  GREENROOM_RUNNER_TOKEN  The pool token, which `greenroom aws runner-token` prints.
  GREENROOM_INSTANCE_ID   The id of the machine. Default: the agent asks the EC2 instance metadata service.
  GREENROOM_RUNNER_DIR    The folder in which the agent creates the folders of bots. Default: the folder for
                          temporary files.

The command gets BOT_DATA in its environment. It may print one JSON object per line on standard output:
  {\"event\":\"joined\"}
  {\"event\":\"status\",\"status\":\"awaiting_admission\",\"reason\":\"…\"}
  {\"event\":\"transcript\",\"segments\":[{\"start_time\":0.5,\"end_time\":2,\"text\":\"…\",\"speaker\":\"…\"}]}
  {\"event\":\"screenshot\",\"path\":\"last.png\"}
  {\"event\":\"exited\",\"reason\":\"…\",\"error\":\"…\"}
Every other line is part of the bot's log. A screenshot is a PNG or JPEG file of at most 512 KiB. The agent
reads it at once; a relative path starts at the folder in which the agent started the command.
The command receives commands on standard input, one JSON object per line: {\"id\",\"action\",\"payload\"}.
When it receives \"leave\", it must leave the meeting and exit.

With --prewarm the command starts with GREENROOM_PREWARM=1 and without BOT_DATA. It prints {\"event\":\"ready\"}
when it can take a meeting. The first line on its standard input is then
{\"action\":\"assignment\",\"payload\":<the bot's data>}. An agent that is started with BOT_DATA prewarms nothing.
";

/// The variable that asks an agent to prewarm, and tells a command that it is started ahead of its meeting.
pub const PREWARM: &str = "GREENROOM_PREWARM";
const READY_TIMEOUT_MS: &str = "GREENROOM_READY_TIMEOUT_MS";
const MAX_WARM_AGE_MS: &str = "GREENROOM_MAX_WARM_AGE_MS";

#[derive(Clone, Debug)]
pub struct Options {
    pub leave_grace: Duration,
    pub kill_grace: Duration,
    pub report_for: Duration,
    /// Whether the command is started before there is a bot.
    pub prewarm: Option<Prewarm>,
    pub command: CommandLine,
}

/// How a command is started before there is a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prewarm {
    /// How long the command may take to become ready.
    pub ready_timeout: Duration,
    /// How long a ready command may wait for a bot; `None` means no limit.
    pub max_age: Option<Duration>,
}

impl Prewarm {
    /// The settings in milliseconds, as the server gives them; 0 means that a ready command never gets too old.
    pub fn from_millis(ready_timeout_ms: u64, max_warm_age_ms: u64) -> Self {
        let max_age = Some(Duration::from_millis(max_warm_age_ms)).filter(|age| !age.is_zero());
        Self { ready_timeout: Duration::from_millis(ready_timeout_ms), max_age }
    }
}

impl Default for Prewarm {
    fn default() -> Self {
        Self { ready_timeout: Duration::from_secs(60), max_age: Some(Duration::from_secs(30 * 60)) }
    }
}

/// The options of `greenroom-agent runner`.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    pub bot: Options,
    /// The command that ends the machine; `None` runs no command.
    pub end_command: Option<CommandLine>,
}

/// A program and its arguments: the bot's command, or the command that ends the machine.
#[derive(Clone, Debug)]
pub struct CommandLine {
    pub program: OsString,
    pub arguments: Vec<OsString>,
}

#[derive(Debug)]
pub enum Asked {
    Run(Options),
    Runner(RunnerOptions),
    Help,
    Version,
}

#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error("there is no command; write greenroom-agent [options] -- command [arguments…]")]
    NoCommand,
    #[error("{0}")]
    Unknown(#[from] lexopt::Error),
    #[error("{0} is not a number of milliseconds")]
    NotMillis(&'static str),
    #[error("{0} must be more than 0")]
    NoTime(&'static str),
}

/// Reads the arguments, and what is not said there from the environment.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&'static str) -> Option<String>,
) -> Result<Asked, OptionsError> {
    let mut arguments = arguments.into_iter().peekable();
    // `runner` is a mode only as the first argument. After options or `--` it is a command with that name.
    let runner = arguments.next_if(|first| first == "runner").is_some();
    let mut end_command = default_end();
    let mut parser = Parser::from_args(arguments);
    let mut leave_grace = Duration::from_secs(20);
    let mut kill_grace = Duration::from_secs(10);
    let mut report_for = Duration::from_secs(15 * 60);
    let mut is_prewarmed = variable(PREWARM).is_some_and(|value| matches!(value.trim(), "1" | "true"));
    let (mut ready_timeout, mut max_warm_age) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("leave-grace") => leave_grace = value(&mut parser)?,
            Arg::Long("kill-grace") => kill_grace = value(&mut parser)?,
            Arg::Long("report-for") => report_for = value(&mut parser)?,
            Arg::Long("prewarm") => is_prewarmed = true,
            Arg::Long("ready-timeout") => ready_timeout = Some(value(&mut parser)?),
            Arg::Long("max-warm-age") => max_warm_age = Some(value(&mut parser)?),
            Arg::Long("end-command") if runner => end_command = parser.value()?.parse_with(command_line)?,
            Arg::Long("help") | Arg::Short('h') => return Ok(Asked::Help),
            Arg::Long("version") | Arg::Short('V') => return Ok(Asked::Version),
            Arg::Value(program) => {
                let command = CommandLine { program, arguments: parser.raw_args()?.collect() };
                let prewarm = is_prewarmed.then(|| prewarm(ready_timeout, max_warm_age, &variable)).transpose()?;
                let bot = Options { leave_grace, kill_grace, report_for, prewarm, command };
                return Ok(if runner { Asked::Runner(RunnerOptions { bot, end_command }) } else { Asked::Run(bot) });
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Err(OptionsError::NoCommand)
}

fn prewarm(
    ready_timeout: Option<Duration>,
    max_warm_age: Option<Duration>,
    variable: &impl Fn(&'static str) -> Option<String>,
) -> Result<Prewarm, OptionsError> {
    let millis = |name| match variable(name) {
        None => Ok(None),
        Some(text) => {
            text.trim().parse().map(|ms| Some(Duration::from_millis(ms))).map_err(|_| OptionsError::NotMillis(name))
        }
    };
    let defaults = Prewarm::default();
    let given_by = if ready_timeout.is_some() { "--ready-timeout" } else { READY_TIMEOUT_MS };
    let ready_timeout = ready_timeout.or(millis(READY_TIMEOUT_MS)?).unwrap_or(defaults.ready_timeout);
    if ready_timeout.is_zero() {
        return Err(OptionsError::NoTime(given_by));
    }
    let max_age = match max_warm_age.or(millis(MAX_WARM_AGE_MS)?) {
        None => defaults.max_age,
        Some(age) => Some(age).filter(|age| !age.is_zero()),
    };
    Ok(Prewarm { ready_timeout, max_age })
}

fn value(parser: &mut Parser) -> Result<Duration, lexopt::Error> {
    parser.value()?.parse_with(duration)
}

fn default_end() -> Option<CommandLine> {
    Some(CommandLine { program: "shutdown".into(), arguments: vec!["-h".into(), "now".into()] })
}

/// Splits `text` at white space. The text `none` means that there is no command.
fn command_line(text: &str) -> Result<Option<CommandLine>, &'static str> {
    let mut parts = text.split_whitespace().map(OsString::from);
    match parts.next() {
        None => Err("a command has words; write none for nothing"),
        Some(program) if program == "none" => Ok(None),
        Some(program) => Ok(Some(CommandLine { program, arguments: parts.collect() })),
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().map_err(|_| "a duration is a number with ms, s, m or h, such as 20s")?;
    match unit {
        "ms" => Ok(Duration::from_millis(number.into())),
        "s" => Ok(Duration::from_secs(number.into())),
        "m" => Ok(Duration::from_secs(u64::from(number) * 60)),
        "h" => Ok(Duration::from_secs(u64::from(number) * 3600)),
        _ => Err("a duration is a number with ms, s, m or h, such as 20s"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Asked, OptionsError> {
        parse(arguments.iter().map(OsString::from), |_| None)
    }

    fn prewarm_of(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Option<Prewarm>, OptionsError> {
        let variable = |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        match parse(arguments.iter().map(OsString::from), variable)? {
            Asked::Run(options) => Ok(options.prewarm),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn prewarm_is_asked_for_by_option_or_by_environment_and_options_take_precedence() {
        assert_eq!(prewarm_of(&["bot"], &[]).unwrap(), None);
        assert_eq!(prewarm_of(&["bot"], &[(PREWARM, "0")]).unwrap(), None);
        assert_eq!(prewarm_of(&["--prewarm", "bot"], &[]).unwrap(), Some(Prewarm::default()));
        let variables = [(PREWARM, "1"), (READY_TIMEOUT_MS, "1500"), (MAX_WARM_AGE_MS, "0")];
        assert_eq!(prewarm_of(&["bot"], &variables).unwrap(), Some(Prewarm::from_millis(1500, 0)));
        let options = ["--ready-timeout", "2s", "--max-warm-age", "1m", "bot"];
        assert_eq!(prewarm_of(&options, &variables).unwrap(), Some(Prewarm::from_millis(2000, 60_000)));
    }

    #[test]
    fn a_bad_time_for_prewarm_is_refused_by_the_name_of_its_option_or_variable() {
        let error = prewarm_of(&["bot"], &[(PREWARM, "1"), (READY_TIMEOUT_MS, "1s")]).unwrap_err().to_string();
        assert_eq!(error, "GREENROOM_READY_TIMEOUT_MS is not a number of milliseconds");
        let error = prewarm_of(&["--prewarm", "--ready-timeout", "0s", "bot"], &[]).unwrap_err().to_string();
        assert_eq!(error, "--ready-timeout must be more than 0");
    }

    #[test]
    fn what_follows_the_dashes_is_the_command_even_if_it_looks_like_an_option() {
        let Asked::Run(options) = parsed(&["--leave-grace", "500ms", "--", "bot", "--help", "--", "-V"]).unwrap()
        else {
            panic!("it is to run");
        };
        assert_eq!(options.command.program, "bot");
        assert_eq!(options.command.arguments, ["--help", "--", "-V"]);
        assert_eq!(options.leave_grace, Duration::from_millis(500));
        assert_eq!(options.kill_grace, Duration::from_secs(10));
    }

    #[test]
    fn runner_is_a_mode_only_as_the_first_word() {
        let Asked::Runner(options) = parsed(&["runner", "--end-command", "poweroff -f", "--", "runner", "x"]).unwrap()
        else {
            panic!("it is a runner");
        };
        assert_eq!((options.bot.command.program, options.bot.command.arguments), ("runner".into(), vec!["x".into()]));
        let end = options.end_command.unwrap();
        assert_eq!((end.program, end.arguments), ("poweroff".into(), vec!["-f".into()]));
        for arguments in [&["--", "runner"][..], &["--kill-grace", "1s", "runner"]] {
            assert!(matches!(parsed(arguments), Ok(Asked::Run(options)) if options.command.program == "runner"));
        }
    }

    #[test]
    fn a_machine_is_ended_by_shutdown_unless_said_otherwise() {
        let end = |arguments: &[&str]| match parsed(arguments).unwrap() {
            Asked::Runner(options) => options.end_command.map(|command| command.program),
            other => panic!("{other:?}"),
        };
        assert_eq!(end(&["runner", "bot"]), Some("shutdown".into()));
        assert_eq!(end(&["runner", "--end-command", "none", "bot"]), None);
        assert!(parsed(&["runner", "--end-command", " ", "bot"]).is_err());
        assert!(parsed(&["--end-command", "none", "bot"]).is_err(), "only a runner has one");
    }

    #[test]
    fn a_missing_command_and_an_unknown_option_and_a_duration_without_unit_are_refused() {
        assert!(matches!(parsed(&[]), Err(OptionsError::NoCommand)));
        assert!(matches!(parsed(&["--"]), Err(OptionsError::NoCommand)));
        assert!(parsed(&["--wait", "--", "bot"]).unwrap_err().to_string().contains("--wait"));
        assert!(parsed(&["--kill-grace", "5", "--", "bot"]).unwrap_err().to_string().contains("such as 20s"));
    }
}
