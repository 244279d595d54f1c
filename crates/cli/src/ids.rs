//! Shortened ids and names. Ids of bots and users sort by time, and lists continue after any id, so one call finds
//! every bot whose id begins with a prefix, however many bots there are.

use serde_json::Value;
use uuid::Uuid;

use crate::client::Client;
use crate::error::{CliError, Exit};
use crate::pages;

/// How many candidates an error names.
const CANDIDATES: usize = 5;

/// The whole id of the bot whose id begins so.
pub async fn bot(client: &Client, given: &str) -> Result<String, CliError> {
    if let Ok(id) = given.parse::<Uuid>() {
        return Ok(id.to_string());
    }
    let none =
        || CliError::not_found(format!("there is no bot {given}")).next("List the bots with `greenroom bots list`.");
    // The newest bot with this prefix comes right after the last id that begins so.
    let last = padded(given, 'f').ok_or_else(none)?;
    let query = [("cursor", last)];
    let found = pages::read(client, &client.bots(&[]), "bots", &query, Some(CANDIDATES + 1)).await?;
    one("bot", given, matching(pages::rows(&found, "bots"), given), none)
}

/// The id of the user whose id begins so, or who has this e-mail address.
pub async fn user(client: &Client, given: &str) -> Result<String, CliError> {
    if let Ok(id) = given.parse::<Uuid>() {
        return Ok(id.to_string());
    }
    let none =
        || CliError::not_found(format!("there is no user {given}")).next("List the users with `greenroom users list`.");
    if let Some(first) = padded(given, '0') {
        let query = [("cursor", before(&first))];
        let found = pages::read(client, &["admin", "users"], "users", &query, Some(CANDIDATES + 1)).await?;
        let ids = matching(pages::rows(&found, "users"), given);
        if !ids.is_empty() {
            return one("user", given, ids, none);
        }
    }
    let all = pages::read(client, &["admin", "users"], "users", &[], None).await?;
    let same = |user: &&Value| user["email"].as_str().is_some_and(|email| email.eq_ignore_ascii_case(given));
    let ids = pages::rows(&all, "users").iter().filter(same).filter_map(|user| user["id"].as_str());
    one("user", given, ids.map(str::to_owned).collect(), none)
}

/// The name of a pool, or of the only pool whose name begins so.
pub async fn pool(client: &Client, given: &str) -> Result<String, CliError> {
    let all = client.get(&["admin", "pools"], &[]).await?;
    named("pool", given, pages::rows(&all, "pools"), "greenroom pools list", is_beginning)
}

/// The name of a pool that is to be changed: a beginning is refused, because it may be the whole name of a pool that
/// is not there.
pub async fn whole_pool(client: &Client, given: &str) -> Result<String, CliError> {
    let all = client.get(&["admin", "pools"], &[]).await?;
    named("pool", given, pages::rows(&all, "pools"), "greenroom pools list", |_, _| false)
}

/// The name of a slot, or of the only slot whose name begins or ends so: `meet-007` is `pool-google-meet-007`.
pub async fn slot(client: &Client, given: &str) -> Result<String, CliError> {
    // The whole name costs one small call.
    match client.get(&["admin", "slots", given], &[]).await {
        Ok(found) => Ok(found["slot"]["name"].as_str().unwrap_or(given).to_owned()),
        Err(error) if error.exit == Exit::NotFound => {
            let all = pages::read(client, &["admin", "slots"], "slots", &[], None).await?;
            named("slot", given, pages::rows(&all, "slots"), "greenroom slots list", is_part_of_slot)
        }
        Err(error) => Err(error),
    }
}

fn is_beginning(name: &str, given: &str) -> bool {
    !given.is_empty() && name.starts_with(given)
}

/// Whether this is a beginning of the name of a slot, or an end of whole words. A whole name stands for itself only:
/// `pool-zoom-100` is not short for `pool-zoom-1000`.
fn is_part_of_slot(name: &str, given: &str) -> bool {
    // As the server makes them, with three digits or more.
    let number = given.strip_prefix("pool-").and_then(|rest| rest.rsplit_once('-')).map(|(_, number)| number);
    let is_whole = number.is_some_and(|number| number.len() >= 3 && number.bytes().all(|byte| byte.is_ascii_digit()));
    let is_end = || !given.is_empty() && name.strip_suffix(given).is_some_and(|before| before.ends_with('-'));
    !is_whole && (is_beginning(name, given) || is_end())
}

/// The row with this name, or else the only one whose name fits what was given.
fn named(
    noun: &str,
    given: &str,
    rows: &[Value],
    list: &str,
    fits: fn(&str, &str) -> bool,
) -> Result<String, CliError> {
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    if names.contains(&given) {
        return Ok(given.to_owned());
    }
    let none = || CliError::not_found(format!("there is no {noun} {given}")).next(format!("List them with `{list}`."));
    let fitting = names.into_iter().filter(|name| fits(name, given)).map(str::to_owned);
    one(noun, given, fitting.collect(), none)
}

fn one(noun: &str, given: &str, ids: Vec<String>, none: impl Fn() -> CliError) -> Result<String, CliError> {
    match ids.as_slice() {
        [] => Err(none()),
        [id] => Ok(id.clone()),
        many => {
            let mut shown = many.iter().take(CANDIDATES).cloned().collect::<Vec<_>>().join(", ");
            if many.len() > CANDIDATES {
                shown.push_str(", …");
            }
            Err(CliError::usage(format!("`{given}` is a part of more than one {noun}: {shown}"))
                .next("Give more characters of it."))
        }
    }
}

fn matching(rows: &[Value], given: &str) -> Vec<String> {
    let given = given.to_ascii_lowercase();
    let ids = rows.iter().filter_map(|row| row["id"].as_str());
    ids.filter(|id| id.starts_with(&given)).map(str::to_owned).collect()
}

/// The prefix of an id, filled up to a whole one. `None` if no id begins so.
fn padded(prefix: &str, fill: char) -> Option<String> {
    const FORM: &str = "00000000-0000-0000-0000-000000000000";

    let prefix = prefix.to_ascii_lowercase();
    if prefix.is_empty() || prefix.len() >= FORM.len() {
        return None;
    }
    let fits = prefix.chars().zip(FORM.chars()).all(|(c, form)| match form {
        '-' => c == '-',
        _ => c.is_ascii_hexdigit(),
    });
    let rest = FORM.get(prefix.len()..)?.replace('0', &fill.to_string());
    fits.then(|| format!("{prefix}{rest}"))
}

/// The id right before this one.
fn before(id: &str) -> String {
    let number = id.parse::<Uuid>().map_or(0, |id| id.as_u128());
    Uuid::from_u128(number.saturating_sub(1)).to_string()
}

/// How many characters of these ids tell them apart, and show when they were made.
pub fn shown_length<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    const TIME: usize = 13;

    let mut ids: Vec<&str> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    let common = |pair: &[&str]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(left, right)| left == right).count();
    ids.windows(2).map(|pair| common(pair) + 1).max().unwrap_or(0).clamp(TIME, 36)
}

#[cfg(test)]
mod tests {
    use super::{before, is_beginning, is_part_of_slot, named, padded, shown_length};
    use serde_json::{Value, json};

    fn find(given: &str, names: &[&str], fits: fn(&str, &str) -> bool) -> Option<String> {
        let rows: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        named("slot", given, &rows, "greenroom slots list", fits).ok()
    }

    #[test]
    fn a_prefix_becomes_the_last_id_that_begins_so() {
        assert_eq!(padded("0197A", 'f').as_deref(), Some("0197afff-ffff-ffff-ffff-ffffffffffff"));
        assert_eq!(padded("0197a3f4-1", '0').as_deref(), Some("0197a3f4-1000-0000-0000-000000000000"));
        for wrong in ["", "xyz", "0197a3f41", "0197-", "0197a3f4-1c2d-7000-8000-000000000000"] {
            assert_eq!(padded(wrong, 'f'), None, "{wrong}");
        }
        assert_eq!(before("0197a3f4-1000-0000-0000-000000000000"), "0197a3f4-0fff-ffff-ffff-ffffffffffff");
    }

    #[test]
    fn a_slot_is_named_by_a_beginning_or_by_an_end_of_whole_words_and_a_whole_name_is_no_part_of_another() {
        let names = ["pool-google-meet-007", "pool-zoom-1000", "pool-zoom-001"];
        let slot = |given| find(given, &names, is_part_of_slot);
        for (given, name) in [("meet-007", names[0]), ("007", names[0]), ("1000", names[1]), ("pool-g", names[0])] {
            assert_eq!(slot(given).as_deref(), Some(name), "{given}");
        }
        assert_eq!(slot("pool-zoom-10").as_deref(), Some("pool-zoom-1000"));
        for given in ["", "7", "et-007", "-007", "00", "pool-zoom-100", "pool-meet-007", "pool-zoom-"] {
            assert_eq!(slot(given), None, "{given}");
        }
        let pools = ["google-meet", "meet-eu"];
        assert_eq!(find("meet", &pools, is_beginning).as_deref(), Some("meet-eu"));
        assert_eq!(find("eu", &pools, is_beginning), None);
        assert_eq!(find("meet", &pools, |_, _| false), None);
    }

    #[test]
    fn shown_ids_differ() {
        let ids = ["0197a3f4-1c2d-7000-8000-000000000001", "0197a3f4-1c2d-7000-8000-000000000002"];
        assert_eq!(shown_length(ids.into_iter()), 36);
        assert_eq!(shown_length(ids[..1].iter().copied()), 13);
    }
}
