//! The marks of an application: labels among its options of `docker run`. They record its installation, its slot, its
//! recipe and its last start.
//!
//! The marks are in these options and not in the description for three reasons. Coolify shows the options in its list
//! to every token and keeps them unchanged. It passes on only the options that it knows, and labels are not among them.
//! And a person who edits a description would otherwise remove the owner of a slot. The name is not used either,
//! because it can be changed and need not be unique.

use crate::Spec;
use crate::fingerprint::fingerprint;

/// The variable with the slot's token.
const TOKEN: &str = "GREENROOM_SLOT_TOKEN";
const LABEL: &str = "--label";
const INSTALLATION: &str = "greenroom.installation";
const SLOT: &str = "greenroom.slot";
const RECIPE: &str = "greenroom.recipe";
const OWN: &str = "greenroom.application";
const START: &str = "greenroom.start";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub installation: String,
    pub slot: String,
    /// The fingerprint of the application's recipe.
    pub recipe: String,
    /// The application that the marks were written for. `None` until its name is known. A clone of an application has
    /// the same marks, which then name the original.
    pub own: Option<String>,
    /// What it was last started for. `None` if it never was.
    pub start: Option<String>,
}

impl Marks {
    /// Reads the marks among the other options. `None` if the application is no slot.
    pub fn read(options: &str) -> Option<Self> {
        let value = |wanted: &str| labels(options).find_map(|label| label.strip_prefix(wanted)?.strip_prefix('='));
        Some(Self {
            installation: value(INSTALLATION)?.to_owned(),
            slot: value(SLOT)?.to_owned(),
            recipe: value(RECIPE).unwrap_or_default().to_owned(),
            own: value(OWN).map(str::to_owned),
            start: value(START).map(str::to_owned),
        })
    }

    /// Whether the marks were written for this application, and not for one that it was cloned from.
    pub fn are_of(&self, uuid: &str) -> bool {
        self.own.as_ref().is_none_or(|own| own == uuid)
    }

    /// The options with these marks. A person's own options stay as they are.
    pub fn written_into(&self, options: &str) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut given = options.split_whitespace().peekable();
        while let Some(word) = given.next() {
            if word == LABEL && given.peek().is_some_and(|label| is_ours(label)) {
                given.next();
            } else {
                parts.push(word.to_owned());
            }
        }
        let Self { installation, slot, recipe, own, start } = self;
        let fixed =
            [(INSTALLATION, installation), (SLOT, slot), (RECIPE, recipe)].map(|(name, value)| (name, Some(value)));
        for (name, value) in fixed.into_iter().chain([(OWN, own.as_ref()), (START, start.as_ref())]) {
            parts.extend(value.map(|value| format!("{LABEL} {name}={value}")));
        }
        parts.join(" ")
    }
}

fn labels(options: &str) -> impl Iterator<Item = &str> {
    let parts = options.split_whitespace();
    parts.clone().zip(parts.skip(1)).filter(|(option, _)| *option == LABEL).map(|(_, label)| label)
}

fn is_ours(label: &str) -> bool {
    [INSTALLATION, SLOT, RECIPE, OWN, START]
        .iter()
        .any(|name| label.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
}

/// Identifies a start. Another generation or connection is another start. So is the same start in a new slot with an
/// old name.
pub fn start(spec: &Spec) -> String {
    let Spec { generation, connection, .. } = spec;
    format!("{generation}/{}/{}", connection.as_deref().unwrap_or("waits"), life(spec))
}

/// Identifies the slot's token, and so the slot itself: a new slot with the same name has another token.
pub fn life(spec: &Spec) -> String {
    let token = spec.environment.get(TOKEN).map(String::as_str).unwrap_or_default();
    fingerprint(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_among_options_that_a_person_has_added() {
        let (installation, slot, recipe) = ("i".into(), "pool-a-001".into(), "r".into());
        let mut marks = Marks { installation, slot, recipe, own: None, start: None };
        let first = marks.written_into("");
        assert_eq!(Marks::read(&first), Some(marks.clone()));
        (marks.own, marks.start) = (Some("u".to_owned()), Some("2/waits".to_owned()));
        let second = marks.written_into(&format!("--shm-size 1g {first} --label theirs=1"));
        assert!(second.starts_with("--shm-size 1g --label theirs=1 --label greenroom.installation=i"), "{second}");
        assert_eq!(Marks::read(&second), Some(marks.clone()));
        assert!(marks.are_of("u") && !marks.are_of("v"));
        assert_eq!(second.matches("greenroom.slot").count(), 1);
        assert_eq!(Marks::read("--label theirs=greenroom.installation=i"), None);
    }
}
