//! Checks what a visitor sees first: the metadata of the crates, the Rust version that is named, and files that tools
//! read.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn manifest(path: &str) -> toml::Table {
    read(path).parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn members() -> Vec<String> {
    let members = manifest("Cargo.toml")["workspace"]["members"].as_array().unwrap().clone();
    members.iter().map(|member| member.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_crate_says_what_it_is_and_under_which_licence() {
    for member in members() {
        let manifest = manifest(&format!("{member}/Cargo.toml"));
        let package = manifest["package"].as_table().unwrap();
        assert!(package["description"].as_str().is_some_and(|text| text.len() > 30), "{member}: description");
        for key in ["version", "edition", "rust-version", "license", "readme", "keywords"] {
            let inherited = package.get(key).and_then(|value| value.get("workspace"));
            assert_eq!(inherited.and_then(toml::Value::as_bool), Some(true), "{member}: {key}");
        }
        assert!(
            package["categories"].as_array().is_some_and(|all| (1..=5).contains(&all.len())),
            "{member}: categories"
        );
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{member}: lints");
    }
}

#[test]
fn the_readme_and_the_workflow_name_the_rust_version_of_the_crates() {
    let workspace = manifest("Cargo.toml");
    let version = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(read("README.md").contains(&format!("Rust {version}")), "README.md does not say Rust {version}");
    let image = format!("image: rust:{version}-");
    assert!(read(".github/workflows/ci.yml").contains(&image), "the workflow does not use {image}");
}

#[test]
fn continuous_integration_runs_the_script_that_contributors_run() {
    assert!(read(".github/workflows/ci.yml").contains("run: .ci/run"));
    let steps = read(".ci/run");
    for step in ["cargo fmt", "cargo clippy", "RUSTDOCFLAGS='-D warnings' cargo doc", "./scripts/rust-version"] {
        assert!(steps.contains(&format!("step {step}")) || steps.contains(&format!("step env {step}")), "{step}");
    }
}

#[test]
fn dependencies_are_limited_to_listed_licences_and_the_public_index() {
    let deny = manifest("deny.toml");
    assert!(deny["licenses"]["allow"].as_array().is_some_and(|all| !all.is_empty()));
    for key in ["unknown-registry", "unknown-git"] {
        assert_eq!(deny["sources"][key].as_str(), Some("deny"), "{key}");
    }
    let lock = manifest("Cargo.lock");
    for package in lock["package"].as_array().unwrap() {
        let source = package.get("source").and_then(toml::Value::as_str);
        assert!(source.is_none_or(|source| source.starts_with("registry+")), "{package}");
    }
}

#[test]
fn there_is_a_security_policy_and_issues_have_forms() {
    let security = read("SECURITY.md");
    for heading in ["## Report a vulnerability", "## Supported versions", "## What is in scope"] {
        assert!(security.contains(heading), "{heading}");
    }
    for form in ["bug_report", "feature_request"] {
        let form = read(&format!(".github/ISSUE_TEMPLATE/{form}.yml"));
        assert!(form.starts_with("name: ") && form.contains("\nbody:\n"), "{form}");
    }
}
