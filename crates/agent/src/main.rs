//! The agent's binary. All code is in the library, which the server also contains.

use std::process::ExitCode;

fn main() -> ExitCode {
    greenroom_agent::run(std::env::args_os().skip(1).collect())
}
