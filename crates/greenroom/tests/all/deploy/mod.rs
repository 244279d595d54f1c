//! Tests of the folder `deploy` and of `scripts/release`. They run what can run without images of others: the last
//! stages of the Dockerfile on a real Docker Engine, the services of compose from Debian's packages, the units under a
//! real systemd. Validators read the rest.

mod compose;
mod image;
mod manifests;
mod release;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use yaml_rust2::{Yaml, YamlLoader};

use crate::support::in_repository;

fn read(path: &str) -> String {
    std::fs::read_to_string(in_repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file.
fn yaml(path: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a command, and fails with its output if it fails.
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}\n{out}\n{err}", output.status);
    output
}

/// One of the binaries under test.
fn binary(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_greenroom")).with_file_name(name);
    assert!(path.exists(), "{name} is not built; ./scripts/test builds the whole workspace");
    path
}
