//! The binary: everything is in the library, which the server carries as well.

use std::process::ExitCode;

fn main() -> ExitCode {
    greenroom_agent::run(std::env::args_os().skip(1))
}
