//! The commands in the documentation work as written. `support/page_shell.rs` explains the marks of a block.

use std::collections::BTreeSet;

use crate::support::{PageShell, markdown::Page};

/// One test for each page with commands that can run here. The name of the test names what the page needs.
macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        const TESTED: &[(&str, &str)] = &[$((stringify!($name), $path)),*];
        $(#[test] fn $name() { PageShell::run($path); })*
    };
}

pages! {
    readme_with_curl_and_jq: "README.md",
    first_start_with_curl_and_jq: "docs/tutorial/first-start.md",
    your_own_bot_with_python_node_curl_and_jq: "docs/tutorial/your-own-bot.md",
    providers_with_curl_and_jq: "docs/providers.md",
    how_to_run_containers: "docs/how-to/docker.md",
    how_to_run_services: "docs/how-to/swarm.md",
    how_to_run_jobs: "docs/how-to/nomad.md",
    how_to_run_applications: "docs/how-to/coolify.md",
    how_to_run_machines: "docs/how-to/ec2.md",
    pools_with_curl_and_jq: "docs/pools.md",
    operations_with_curl_and_jq: "docs/operations.md",
    replicas_with_postgres_curl_and_jq: "docs/how-to/replicas.md",
    backup_with_sqlite3_postgres_curl_and_jq: "docs/how-to/backup.md",
    upgrade: "docs/how-to/upgrade.md",
    sizing_with_curl_and_jq: "docs/how-to/sizing.md",
    configuration: "docs/configuration.md",
    api_with_curl_and_jq: "docs/api.md",
    keepers_with_curl_and_jq: "docs/keepers.md",
}

#[test]
fn every_command_in_the_documentation_is_run_by_a_test_or_says_why_not() {
    let mut complaints = Vec::new();
    let mut found = BTreeSet::new();
    for page in Page::all() {
        let mut runs = false;
        for block in page.blocks() {
            let place = format!("{}:{}", page.path, block.line);
            let (run, skip) = (block.mark("run"), block.mark("skip"));
            runs |= run.is_some();
            let is_shell = ["sh", "bash", "console", "shell"].contains(&block.language.as_str());
            if is_shell && run.is_none() && skip.is_none() && block.mark("file").is_none() {
                complaints.push(format!("{place}: the commands have neither `run` nor `skip=why`"));
            }
            if skip.is_some_and(|why| why.len() < 5) {
                complaints.push(format!("{place}: `skip=` gives no reason"));
            }
        }
        let test = TESTED.iter().find(|(_, path)| *path == page.path);
        match test {
            Some(_) if !runs => complaints.push(format!("{}: has a test, and no commands that run", page.path)),
            None if runs => complaints.push(format!("{}: add its test to doc_commands.rs", page.path)),
            _ => {}
        }
        if let Some((name, path)) = test {
            found.insert(*path);
            let unnamed: Vec<_> = page.needs().into_iter().filter(|need| !name.contains(need.as_str())).collect();
            if !unnamed.is_empty() {
                complaints.push(format!("{path}: needs {unnamed:?}, which the name of its test does not say"));
            }
        }
    }
    complaints
        .extend(TESTED.iter().filter(|(_, path)| !found.contains(path)).map(|(_, path)| format!("no page {path}")));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// A reader copies these. A block that shows only a part of a pool says `part`.
#[test]
fn every_configuration_in_the_documentation_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("greenroom.toml");
    let mut checked = 0;
    for page in Page::all() {
        for block in page.blocks().iter().filter(|block| block.language == "toml" && block.text.contains("[[pool]]")) {
            std::fs::write(&file, &block.text).unwrap();
            let sources = greenroom::config::Sources { file: Some(file.clone()), ..Default::default() };
            let result = greenroom::config::Config::load(&sources);
            assert!(result.is_ok(), "{}:{}: {}", page.path, block.line, result.unwrap_err());
            checked += 1;
        }
    }
    assert!(checked > 5, "only {checked} were found");
}
