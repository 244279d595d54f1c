//! The binary: everything is in the library.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    greenroom::cli::run().await
}
