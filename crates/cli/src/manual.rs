//! Man pages and the reference in Markdown, both from the tree of commands.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command};

use crate::error::{CliError, Done};

#[derive(Debug, Args)]
pub struct Man {
    /// The command to describe, for example `bots start`. Default: greenroom itself.
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder instead.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub fn run(&self, mut tree: Command) -> Done {
        tree.build();
        if let Some(folder) = &self.out {
            return write_all(&tree, folder)
                .map_err(|error| CliError::failed(format!("cannot write to {}: {error}", folder.display())));
        }
        let mut command = &tree;
        for name in &self.command {
            command = command
                .find_subcommand(name)
                .ok_or_else(|| CliError::usage(format!("there is no command {}", self.command.join(" "))))?;
        }
        let mut page = Vec::new();
        page_of(command).render(&mut page)?;
        std::io::stdout().write_all(&page).map_err(Into::into)
    }
}

/// `greenroom-bots-start`, section 1.
fn page_of(command: &Command) -> clap_mangen::Man {
    let title = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    clap_mangen::Man::new(command.clone()).title(title).manual("Greenroom")
}

fn write_all(command: &Command, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut page = Vec::new();
    page_of(command).render(&mut page)?;
    std::fs::write(folder.join(format!("{name}.1")), page)?;
    visible(command).try_for_each(|below| write_all(below, folder))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
}

/// The reference of all commands, in Markdown. Options that every remote command has are listed once.
pub fn markdown(mut tree: Command) -> String {
    tree.build();
    let mut text = String::new();
    for command in visible(&tree) {
        section(&mut text, command, &format!("{} {}", tree.get_name(), command.get_name()), 2);
    }
    text
}

fn section(text: &mut String, command: &Command, path: &str, depth: usize) {
    let _ = writeln!(text, "\n{} `{path}`", "#".repeat(depth.min(4)));
    if let Some(about) = command.get_about() {
        let _ = writeln!(text, "\n{}", sentence(&about.to_string()));
    }
    let is_common = |arg: &Arg| is_common(arg, path);
    let below: Vec<&Command> = visible(command).collect();
    if below.is_empty() {
        text.push('\n');
        let mut usage = vec![path.to_owned()];
        if command.get_opts().any(|arg| !arg.is_hide_set() && !is_common(arg)) {
            usage.push("[OPTIONS]".to_owned());
        }
        usage.extend(command.get_positionals().map(positional));
        let _ = writeln!(text, "```\n{}\n```", usage.join(" "));
    }
    let rows: Vec<String> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !is_common(arg))
        .map(|arg| format!("| `{}` | {} |", spelled(arg), help(arg)))
        .collect();
    if !rows.is_empty() && below.is_empty() {
        let _ = writeln!(text, "\n| argument | meaning |\n|---|---|\n{}", rows.join("\n"));
    }
    for command in below {
        section(text, command, &format!("{path} {}", command.get_name()), depth + 1);
    }
}

/// Options that the introduction of the reference explains: those of all commands that talk to a server, and those of
/// `serve`, which all commands have that read its configuration.
fn is_common(arg: &Arg, path: &str) -> bool {
    let is_setting = matches!(
        (arg.get_id().as_str(), value_name(arg).as_str()),
        ("config", "FILE") | ("listen", "ADDRESS") | ("public_url" | "database", "URL") | ("set", "KEY=VALUE")
    );
    matches!(arg.get_id().as_str(), "help" | "version")
        || arg.is_global_set()
        || is_setting && !path.ends_with(" serve")
}

/// clap takes the full stop from the end.
fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with(['.', '…']) { text.to_owned() } else { format!("{text}.") }
}

fn positional(arg: &Arg) -> String {
    let name = value_name(arg);
    let many = if arg.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
    if arg.is_required_set() { format!("{name}{many}") } else { format!("[{name}{many}]") }
}

fn value_name(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    names.first().map_or_else(|| arg.get_id().as_str().to_uppercase(), |name| name.to_string())
}

fn spelled(arg: &Arg) -> String {
    let Some(long) = arg.get_long() else { return positional(arg) };
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    match arg.get_action().takes_values() {
        true if arg.is_require_equals_set() => format!("{short}--{long}[={}]", value_name(arg)),
        true => format!("{short}--{long} {}", value_name(arg)),
        false => format!("{short}--{long}"),
    }
}

fn help(arg: &Arg) -> String {
    let help = arg.get_help().map(|help| sentence(&help.to_string())).unwrap_or_default();
    let mut help = help.replace('|', "\\|").replace('\n', " ");
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if !default.is_empty() && arg.get_action().takes_values() {
        let _ = write!(help, " Default: `{}`.", default.join(" "));
    }
    help
}
