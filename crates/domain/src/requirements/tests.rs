//! Compares the rule with simpler implementations of the same rule.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// Whether a name matches a pattern, by trying every possible text for each `*`.
fn plainly_meets(name: &[char], pattern: &[char]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|taken| plainly_meets(&name[taken..], rest)),
        Some((letter, rest)) => {
            let first = name.first().is_some_and(|first| first.eq_ignore_ascii_case(letter));
            first && plainly_meets(&name[1..], rest)
        }
    }
}

fn plainly_fits(wanted: &Requirements, slot: &Attributes) -> bool {
    if let Some(class) = &wanted.resource_class {
        let Some(has) = &slot.resource_class else { return false };
        if class != has {
            return false;
        }
    }
    if wanted.usage_class != slot.usage_class {
        return false;
    }
    for (least, has) in [(wanted.cpu, slot.cpu), (wanted.mem, slot.mem)] {
        if let Some(least) = least
            && has < least
        {
            return false;
        }
    }
    let patterns = wanted.allowed_instance_types.clone().map(String::from);
    let Some(name) = &slot.instance_type else { return patterns.is_none() };
    let letters: Vec<char> = name.chars().collect();
    let patterns = patterns.unwrap_or_else(|| "c* m* r*".to_owned());
    patterns.split(' ').any(|pattern| plainly_meets(&letters, &pattern.chars().collect::<Vec<_>>()))
}

fn wanted() -> impl Strategy<Value = Requirements> {
    (
        proptest::option::of("large|xlarge"),
        prop_oneof![Just(UsageClass::OnDemand), Just(UsageClass::Spot)],
        proptest::option::of("[cCmr*]{1,4}( [c5.al*]{1,4}){0,2}"),
        proptest::option::of(0..5_u32),
        proptest::option::of(0..5_u32),
    )
        .prop_map(|(resource_class, usage_class, types, cpu, mem)| Requirements {
            resource_class,
            usage_class,
            allowed_instance_types: types.map(|types| Patterns::try_from(types).unwrap()),
            cpu,
            mem,
        })
}

fn slot() -> impl Strategy<Value = Attributes> {
    (
        proptest::option::of("large|xlarge"),
        prop_oneof![Just(UsageClass::OnDemand), Just(UsageClass::Spot)],
        proptest::option::of("[cCmrt][5.al]{0,4}"),
        0..5_u32,
        0..5_u32,
    )
        .prop_map(|(resource_class, usage_class, instance_type, cpu, mem)| Attributes {
            resource_class,
            usage_class,
            instance_type,
            cpu,
            mem,
        })
}

proptest! {
    #[test]
    fn a_slot_fits_exactly_when_it_plainly_does(wanted in wanted(), slot in slot()) {
        prop_assert_eq!(wanted.fits(&slot), plainly_fits(&wanted, &slot));
    }

    #[test]
    fn a_name_meets_a_pattern_exactly_when_it_plainly_does(name in "[abA.]{0,8}", pattern in "[ab.*]{1,8}") {
        let (letters, pattern_letters): (Vec<char>, Vec<char>) = (name.chars().collect(), pattern.chars().collect());
        let patterns = Patterns::try_from(pattern).unwrap();
        prop_assert_eq!(patterns.allow(&name), plainly_meets(&letters, &pattern_letters));
    }

    #[test]
    fn attributes_are_read_as_they_were_stored(slot in slot()) {
        prop_assert_eq!(slot.to_string().parse::<Attributes>().unwrap(), slot);
    }

    #[test]
    fn requirements_have_the_same_key_exactly_when_they_are_the_same(one in wanted(), other in wanted()) {
        prop_assert_eq!(one.key() == other.key(), one == other);
        prop_assert_eq!(serde_json::from_str::<Requirements>(&one.key()).unwrap(), one);
    }

    #[test]
    fn any_text_is_read_or_refused_as_attributes(text in ".{0,40}") {
        let _ = text.parse::<Attributes>();
    }
}

#[test]
fn only_the_star_is_a_wildcard_and_the_whole_name_counts() {
    let allows = |patterns: &str, name: &str| Patterns::try_from(patterns.to_owned()).unwrap().allow(name);
    assert!(allows("c6i.large", "C6i.Large"));
    assert!(!allows("c6i.large", "c6ixlarge"), "a dot is a dot");
    assert!(!allows("c6i", "c6i.large"), "the whole name");
    assert!(!allows("large", "c6i.large"));
    assert!(allows("*.large", "c6i.large") && allows("c*.l*e", "c6i.large") && allows("*", "x"));
    assert!(allows("m5.large  c6*", "c6i.xlarge"), "any of several");
    assert!(!allows("t* r*", "c6i.large"));
}

#[test]
fn patterns_that_nothing_can_meet_are_refused() {
    let refused = |text: &str| Patterns::try_from(text.to_owned()).unwrap_err();
    assert_eq!(refused("  "), PatternsError::Empty);
    assert_eq!(refused("c* m[5]"), PatternsError::Impossible("m[5]".to_owned()));
    assert_eq!(refused("c?.large"), PatternsError::Impossible("c?.large".to_owned()));
    assert_eq!(refused(&"c* ".repeat(65)), PatternsError::TooMany);
}

#[test]
fn no_requirements_accept_any_slot_and_other_requirements_do_not_accept_spot_by_default() {
    let spot = Attributes { usage_class: UsageClass::Spot, cpu: 2, ..Attributes::default() };
    assert!(fits(None, &spot));
    let asks = Requirements { cpu: Some(2), ..Requirements::default() };
    assert!(!asks.fits(&spot));
    assert!(asks.fits(&Attributes { usage_class: UsageClass::OnDemand, ..spot.clone() }));
    assert!(Requirements { usage_class: UsageClass::Spot, ..asks }.fits(&spot));
}

#[test]
fn the_usual_types_are_meant_where_none_are_named() {
    let of = |name: &str| Attributes { instance_type: Some(name.to_owned()), ..Attributes::default() };
    let asks = Requirements::default();
    for (name, usual) in [("c6i.large", true), ("M5.xlarge", true), ("r7g.large", true), ("t3.large", false)] {
        assert_eq!(asks.fits(&of(name)), usual, "{name}");
    }
    let named = Requirements { allowed_instance_types: Some(Patterns::usual().clone()), ..Requirements::default() };
    assert!(asks.fits(&Attributes::default()), "a slot without a type");
    assert!(!named.fits(&Attributes::default()), "a type was asked for");
}
