//! Checks for the operator that AWS has everything that runners need.

use aws::{RunnerPool, Survey};

use super::super::check::Check;

/// How the operator makes the missing parts, and applies changed sizes.
const INIT: &str = "run `greenroom aws init`";

pub async fn check(pool: &RunnerPool, slots: u32) -> Vec<Check> {
    let settings = pool.settings();
    let table = pool.ping().await;
    let is_there = table.is_ok();
    let table = table.map(|()| format!("the table {} in {} answers", settings.table, settings.region));
    let mut checks = vec![Check::of("reachable", table.map_err(Into::into))];
    if !is_there {
        return checks;
    }
    match pool.survey().await {
        Ok(survey) => checks.extend([queues(&survey), groups(&survey), room(&survey, slots)]),
        Err(error) => checks.push(Check::bad("queues", error.to_string())),
    }
    checks
}

fn queues(survey: &Survey) -> Check {
    if survey.missing_queues.is_empty() {
        return Check::good("queues", survey.queues.join(", "));
    }
    Check::bad("queues", format!("missing at AWS: {}; {INIT}", survey.missing_queues.join(", ")))
}

/// Without a group nothing can grow, but the server still uses runners that register.
fn groups(survey: &Survey) -> Check {
    if !survey.missing_groups.is_empty() {
        let missing = survey.missing_groups.join(", ");
        return Check::bad("groups", format!("missing at AWS: {missing}; set `launch_template`, and {INIT}"));
    }
    let shown = |group: &aws::SurveyedGroup| format!("{} {} of {}", group.name, group.machines, group.max);
    let all = survey.groups.iter().map(shown).collect::<Vec<_>>().join(", ");
    match survey.groups.iter().find(|group| group.max != group.wanted_max) {
        Some(group) => Check::doubtful(
            "groups",
            format!(
                "{} allows {} machines at AWS, but {} are configured: {INIT}",
                group.name, group.max, group.wanted_max
            ),
        ),
        None => Check::good("groups", all),
    }
}

/// Whether there can be as many runners as slots.
fn room(survey: &Survey, slots: u32) -> Check {
    let all = survey.groups.iter().fold(0_u32, |all, group| all.saturating_add(group.max));
    let found = format!("at most {all} runners");
    if all < slots {
        return Check::doubtful(
            "room",
            format!("{found}, for {slots} slots: raise the `max` of a class, or lower `max_slots`"),
        );
    }
    Check::good("room", found)
}
