//! Checks the table "Which module may use which" of ARCHITECTURE.md, and the list in `lib.rs`, against the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const SECTION: &str = "## Which module may use which";

type Uses = BTreeMap<String, BTreeSet<String>>;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The rows of the table, in their order.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md")).unwrap();
    let section = text.split(SECTION).nth(1).expect("ARCHITECTURE.md has no section with the table");
    let section = section.split("\n## ").next().unwrap();
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [module, uses] = cells[..] else { panic!("a row has two cells: {row}") };
        (names(module).remove(0), names(uses).into_iter().collect())
    })
    .collect()
}

/// The modules that `lib.rs` declares, and the crates that it shows as modules.
fn modules() -> BTreeSet<String> {
    let text = std::fs::read_to_string(source().join("lib.rs")).unwrap();
    let declared = text.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
    let declared = declared.map(|name| name.trim_end_matches(';').to_owned());
    declared.chain(crates()).collect()
}

/// The crates of this workspace that `lib.rs` shows as modules.
fn crates() -> Vec<String> {
    let text = std::fs::read_to_string(source().join("lib.rs")).unwrap();
    let shown = text.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';'));
    shown.map(str::to_owned).collect()
}

/// Which of these crates a crate depends on. The compiler sees to it that it uses no others.
fn dependencies(name: &str) -> BTreeSet<String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("Cargo.toml");
    let text = std::fs::read_to_string(manifest).unwrap();
    let normal = text.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    crates().into_iter().filter(|other| normal.lines().any(|line| line.starts_with(&format!("{other}.")))).collect()
}

/// The modules in the order in which the documentation of `lib.rs` lists them.
fn listed() -> Vec<String> {
    let text = std::fs::read_to_string(source().join("lib.rs")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! - [`"));
    let names = lines.flat_map(|line| line.split("`]:").next().unwrap().split("`], [`"));
    names.map(|name| name.trim_start_matches("mod@").to_owned()).collect()
}

/// Every Rust file of a folder and its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without comments and without test code. Also the names of test modules that are in other files.
fn shipped(text: &str) -> (String, Vec<String>) {
    let (mut kept, mut test_modules) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            let code = if line.trim_start().starts_with("//") { "" } else { line };
            kept.push_str(code.split(" // ").next().unwrap_or_default());
            kept.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let mut item = lines.find(|line| !line.trim().starts_with("#[")).unwrap();
        if let Some(module) = item.trim().strip_suffix(';').and_then(|item| item.rsplit_once("mod ")) {
            test_modules.push(module.1.to_owned());
        }
        // rustfmt ends an item with a block by a bracket with the same indentation, and any other item by a semicolon.
        let is_closed = |line: &str| line.strip_prefix(&" ".repeat(indent)).is_some_and(|line| line.starts_with('}'));
        let mut has_block = false;
        loop {
            has_block |= item.trim_end().ends_with('{');
            let is_whole = item.trim_end().ends_with([';', '}']);
            if (has_block && is_closed(item)) || (!has_block && is_whole) {
                break;
            }
            item = lines.next().unwrap();
        }
    }
    (kept, test_modules)
}

/// The first name of every path that begins with `crate::`, also inside braces.
fn used(code: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate::` of a macro is the same crate; `xcrate::` is not.
        if code[..at].ends_with(is_name) {
            continue;
        }
        let path = &code[at + "crate::".len()..];
        if !path.starts_with('{') {
            found.insert(path.split(|letter| !is_name(letter)).next().unwrap().to_owned());
            continue;
        }
        let (mut depth, mut name) = (0, String::new());
        for letter in path.chars() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ if depth == 1 => name.push(letter),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        let names = name.split(',').map(|name| name.trim().split("::").next().unwrap_or_default().to_owned());
        found.extend(names.filter(|name| !name.is_empty()));
    }
    found
}

/// The modules that each top-level module uses.
fn uses() -> Uses {
    let mut uses = Uses::new();
    let mut test_files = BTreeSet::new();
    let mut texts = Vec::new();
    for path in files(&source()) {
        let (code, test_modules) = shipped(&std::fs::read_to_string(&path).unwrap());
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let is_root = ["mod", "lib", "main"].contains(&stem);
        let folder = if is_root { path.parent().unwrap().to_owned() } else { path.with_extension("") };
        for module in test_modules {
            test_files.insert(folder.join(&module).with_extension("rs"));
            test_files
                .extend(folder.join(&module).is_dir().then(|| files(&folder.join(&module))).into_iter().flatten());
        }
        texts.push((path, code));
    }
    for (path, code) in texts {
        let below = path.strip_prefix(source()).unwrap();
        let module = below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if ["lib", "main"].contains(&module) || test_files.contains(&path) {
            continue;
        }
        // A path with `super` could leave its module unnoticed.
        let depth = below.iter().count() - usize::from(below.ends_with("mod.rs"));
        let climbs = format!("use {}", "super::".repeat(depth));
        let outside = code.lines().find(|line| line.starts_with(&climbs));
        assert_eq!(outside, None, "{} leaves its module: write `crate::`", below.display());
        let mut used = used(&code);
        used.remove(module);
        uses.entry(module.to_owned()).or_default().extend(used);
    }
    uses.extend(crates().into_iter().map(|name| (name.clone(), dependencies(&name))));
    uses
}

#[test]
fn each_module_uses_what_the_table_allows_and_the_table_allows_nothing_else() {
    let (table, uses) = (table(), uses());
    assert_eq!(table.iter().map(|(module, _)| module.clone()).collect::<BTreeSet<_>>(), modules(), "rows and modules");
    let mut wrong = Vec::new();
    for (module, allowed) in &table {
        let used = &uses[module];
        wrong.extend(used.difference(allowed).map(|other| format!("`{module}` uses `{other}`, and must not")));
        wrong.extend(allowed.difference(used).map(|other| format!("`{module}` may use `{other}`, and does not")));
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md, \"Which module may use which\": {wrong:#?}");
}

#[test]
fn the_table_and_the_list_in_lib_have_no_cycles() {
    let table = table();
    let uses: Uses = table.iter().cloned().collect();
    let rows: Vec<String> = table.into_iter().map(|(module, _)| module).collect();
    for (place, order) in [("ARCHITECTURE.md", rows), ("lib.rs", listed())] {
        assert_eq!(order.iter().cloned().collect::<BTreeSet<_>>(), modules(), "{place} lists every module");
        for (at, module) in order.iter().enumerate() {
            let before = order[..at].iter().find(|other| uses[module].contains(*other));
            assert_eq!(before, None, "{place}: `{module}` uses a module that is listed before it");
        }
    }
}

#[test]
fn a_use_is_found_however_it_is_written_and_not_in_tests_or_comments() {
    let text = "\
use crate::{api, telemetry};
use crate::{
    store::{self, Store},
    clock::Clock,
};
pub use crate::bus::Bus;
fn f() -> crate::random::Random { // crate::cli
    /// [`crate::bench`]
    macro_of_ours!($crate::doctor::look())
}
#[cfg(test)]
mod tests {
    use crate::keepers::Keeper;
    use crate::placement::Placement;
}
#[cfg(test)]
fn of_tests(
    at: usize,
) -> crate::bench::Done {
    let at = at + 1;
    crate::cli::run(at)
}
#[cfg(test)]
mod more_tests;
use crate::config::Config;
";
    let (code, test_modules) = shipped(text);
    let found = ["api", "bus", "clock", "config", "doctor", "random", "store", "telemetry"];
    assert_eq!(used(&code), found.map(str::to_owned).into());
    assert_eq!(test_modules, ["more_tests"]);
}
