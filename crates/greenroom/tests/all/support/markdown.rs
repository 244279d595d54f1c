//! Reads the Markdown of the documentation: its pages, code blocks, hidden commands, headings and links.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::in_repository;

/// Folders with documentation. Files at the root of the repository are pages too.
const FOLDERS: [&str; 4] = ["docs", "deploy", "clients", "examples"];
/// Folders that tools make.
const NOT_OURS: [&str; 5] = ["node_modules", "target", "dist", ".venv", "vendor"];

/// A page of the documentation.
#[derive(Debug)]
pub struct Page {
    /// The path in the repository.
    pub path: String,
    pub text: String,
}

/// A fenced block, or commands in a comment that begins with `<!-- run`.
#[derive(Clone, Debug)]
pub struct Block {
    pub line: usize,
    /// The first word after the fence: `sh`, `toml`, …
    pub language: String,
    /// The words after the language: `run`, `run=server`, `skip=needs-aws`, `file=greenroom.toml`, `output`.
    pub marks: Vec<String>,
    pub text: String,
}

impl Block {
    /// The value of a mark: `Some("")` for `run`, `Some("server")` for `run=server`.
    pub fn mark(&self, name: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| match mark.split_once('=') {
            Some((key, value)) => (key == name).then_some(value),
            None => (mark == name).then_some(""),
        })
    }
}

impl Page {
    pub fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(in_repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// Every page, in the order of the paths.
    pub fn all() -> Vec<Self> {
        let mut paths = BTreeSet::new();
        collect(&in_repository(""), Path::new(""), false, &mut paths);
        for folder in FOLDERS.iter().filter(|folder| in_repository(folder).is_dir()) {
            collect(&in_repository(folder), Path::new(folder), true, &mut paths);
        }
        paths.iter().map(|path| Self::read(path)).collect()
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let indent = line.len() - line.trim_start().len();
            let trimmed = line.trim_start();
            let (words, is_end): (&str, fn(&str) -> bool) = if let Some(words) = trimmed.strip_prefix("```") {
                (words, |line| line.trim() == "```")
            } else if trimmed.starts_with("<!-- run") && !trimmed.contains("-->") {
                (trimmed.trim_start_matches("<!-- "), |line| line.trim() == "-->")
            } else {
                // A comment in one line has no commands.
                let Some(words) = trimmed.strip_prefix("<!-- run").and_then(|rest| rest.strip_suffix("-->")) else {
                    continue;
                };
                let marks = vec![format!("run{}", words.trim())];
                blocks.push(Block { line: number + 1, language: "sh".to_owned(), marks, text: String::new() });
                continue;
            };
            let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            let language = match words.first() {
                Some(first) if first.starts_with("run") => "sh".to_owned(),
                Some(_) => words.remove(0),
                None => String::new(),
            };
            let mut text = String::new();
            for (_, line) in lines.by_ref().take_while(|(_, line)| !is_end(line)) {
                text.push_str(line.get(indent..).unwrap_or(line.trim_start()));
                text.push('\n');
            }
            blocks.push(Block { line: number + 1, language, marks: words, text });
        }
        blocks
    }

    /// What the page needs beyond the server, from `<!-- needs: postgres jq -->`.
    pub fn needs(&self) -> Vec<String> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("<!-- needs:")?.strip_suffix("-->"));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    }

    /// The text without code and comments. Lines stay where they are.
    fn prose(&self) -> String {
        let (mut prose, mut is_code, mut is_comment) = (String::new(), false, false);
        for line in self.text.lines() {
            let is_fence = line.trim_start().starts_with("```");
            is_comment |= line.trim_start().starts_with("<!--");
            if !is_fence && !is_code && !is_comment {
                for (index, part) in line.split('`').enumerate() {
                    prose.push_str(if index % 2 == 0 { part } else { "code" });
                }
            }
            is_code ^= is_fence;
            is_comment &= !line.contains("-->");
            prose.push('\n');
        }
        prose
    }

    /// The names that `#…` can point to, as GitHub and mdBook make them of headings.
    pub fn anchors(&self) -> BTreeSet<String> {
        let (mut anchors, mut seen) = (BTreeSet::new(), BTreeMap::new());
        let mut is_code = false;
        for line in self.text.lines() {
            is_code ^= line.trim_start().starts_with("```");
            let title = line.trim_start_matches('#');
            if !is_code && title.len() < line.len() && title.starts_with(' ') {
                let slug = slug(title.trim());
                let count: &mut usize = seen.entry(slug.clone()).or_default();
                anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
                *count += 1;
            }
        }
        anchors.extend(self.text.split("id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        anchors
    }

    /// The targets of all links and pictures.
    pub fn links(&self) -> Vec<String> {
        let prose = self.prose();
        let mut links: Vec<String> =
            prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect();
        for attribute in ["href=\"", "src=\"", "srcset=\""] {
            links.extend(prose.split(attribute).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
        links
    }

    /// The file that a relative link of this page points to.
    pub fn resolve(&self, target: &str) -> PathBuf {
        let folder = Path::new(&self.path).parent().unwrap_or(Path::new(""));
        let mut resolved = PathBuf::new();
        for part in folder.join(target).components() {
            match part {
                std::path::Component::ParentDir => assert!(resolved.pop(), "{}: {target}", self.path),
                std::path::Component::CurDir => {}
                other => resolved.push(other),
            }
        }
        resolved
    }
}

fn collect(folder: &Path, name: &Path, is_deep: bool, paths: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (file_name, path) = (entry.file_name(), entry.path());
        let is_ours = !NOT_OURS.iter().any(|other| file_name == *other);
        if is_deep && path.is_dir() && is_ours {
            collect(&path, &name.join(&file_name), true, paths);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.insert(name.join(&file_name).to_str().unwrap().to_owned());
        }
    }
}

/// The anchor of a heading.
fn slug(title: &str) -> String {
    // A link in a heading counts with its text only.
    let mut plain = String::new();
    let mut rest = title;
    while let Some((before, link)) = rest.split_once("](") {
        plain.push_str(&before.replacen('[', "", 1));
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    let kept = plain.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}
