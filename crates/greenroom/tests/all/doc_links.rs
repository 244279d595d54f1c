//! Links in the documentation lead somewhere, in the repository and in the book that is made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{in_repository, markdown::Page};

fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:", "data:"].iter().any(|scheme| target.starts_with(scheme))
}

#[test]
fn every_link_in_the_documentation_leads_to_a_file_and_a_heading() {
    let pages: BTreeMap<PathBuf, Page> = Page::all().into_iter().map(|page| ((&page.path).into(), page)).collect();
    let (mut complaints, mut count) = (Vec::new(), 0);
    for page in pages.values() {
        for link in page.links().iter().filter(|link| !is_elsewhere(link)) {
            count += 1;
            let (target, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(file, name)| (file, Some(name)));
            let file = if target.is_empty() { page.path.clone().into() } else { page.resolve(target) };
            if !in_repository(file.to_str().unwrap()).exists() {
                complaints.push(format!("{}: there is no file for `{link}`", page.path));
            } else if let (Some(anchor), Some(other)) = (anchor, pages.get(&file))
                && !other.anchors().contains(anchor)
            {
                complaints.push(format!("{}: there is no heading for `{link}`", page.path));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(count > 100, "only {count} links were found");
}

#[test]
fn every_page_is_in_the_summary_of_the_book() {
    let summary = Page::read("docs/SUMMARY.md");
    let listed: BTreeSet<PathBuf> =
        summary.links().iter().filter(|link| !is_elsewhere(link)).map(|link| summary.resolve(link)).collect();
    let unlisted: Vec<String> = Page::all()
        .into_iter()
        .map(|page| page.path)
        .filter(|path| path != "docs/SUMMARY.md" && !listed.contains(Path::new(path)))
        .collect();
    assert!(unlisted.is_empty(), "docs/SUMMARY.md does not list {unlisted:?}");
}

/// Builds the book, and follows every link of the result.
#[test]
fn the_book_builds_with_mdbook_and_has_no_broken_links_and_nothing_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let mut build = Command::new(in_repository("scripts/book"));
    let output = build.env("BOOK_FOLDER", folder.path()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");

    let root = folder.path().join("html");
    let mut pages = BTreeMap::new();
    read_pages(&root, &mut pages);
    assert!(pages.len() > 30, "the book has only {} pages", pages.len());
    let (mut complaints, mut count) = (Vec::new(), 0);
    for (file, text) in &pages {
        for (attribute, target) in attributes(text) {
            if is_elsewhere(&target) {
                // A link may lead to another site. The page itself must load nothing from one.
                if attribute != "href" || text.contains(&format!("<link rel=\"stylesheet\" href=\"{target}")) {
                    complaints.push(format!("{}: loads {target}", file.display()));
                }
                continue;
            }
            count += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = path.split('?').next().unwrap_or_default();
            let wanted = if path.is_empty() { file.clone() } else { file.parent().unwrap().join(path) };
            let wanted = if wanted.is_dir() { wanted.join("index.html") } else { wanted };
            let Ok(wanted) = wanted.canonicalize() else {
                complaints.push(format!("{}: there is no file for {target}", file.display()));
                continue;
            };
            let is_named = |text: &String| anchor.is_empty() || text.contains(&format!("id=\"{anchor}\""));
            if pages.get(&wanted).is_some_and(|text| !is_named(text)) {
                complaints.push(format!("{}: there is no heading for {target}", file.display()));
            }
        }
    }
    complaints.dedup();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(count > 1000, "only {count} links were found");
}

fn read_pages(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path().canonicalize().unwrap();
        if path.is_dir() {
            read_pages(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            pages.insert(path.clone(), std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The targets of a page, each with its attribute.
fn attributes(text: &str) -> Vec<(&'static str, String)> {
    let names = [("href", " href=\""), ("src", " src=\""), ("srcset", " srcset=\"")];
    let of = |(name, begin): (&'static str, &str)| {
        let values: Vec<_> =
            text.split(begin).skip(1).filter_map(|rest| Some((name, rest.split_once('"')?.0.to_owned()))).collect();
        values
    };
    names.into_iter().flat_map(of).collect()
}

#[test]
fn the_readme_is_short() {
    assert!(Page::read("README.md").text.lines().count() < 120, "move something to docs/");
}

#[test]
fn the_tests_that_the_security_policy_names_exist() {
    let policy = Page::read("SECURITY.md").text;
    let names = policy.split('`').skip(1).step_by(2);
    // Other words in the policy have at most one underscore.
    let names: BTreeSet<&str> = names.filter(|name| name.matches('_').count() > 2 && !name.contains(' ')).collect();
    assert!(names.len() > 20, "{names:?}");
    let mut code = String::new();
    read_code(&in_repository("crates"), &mut code);
    let missing: Vec<_> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "there are no tests {missing:?}");
}

fn read_code(folder: &Path, code: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_code(&path, code);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}
