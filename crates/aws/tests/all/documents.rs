//! The policies in the documentation are those that the code renders for the documented example.

use std::time::Duration;

use aws::{Class, Pace, Settings};

fn example() -> Settings {
    let class = |name: &str, cpu, mem, types: &[&str]| Class {
        name: name.to_owned(),
        cpu,
        mem,
        instance_types: types.iter().map(|name| (*name).to_owned()).collect(),
        max: 10,
        spot_max: 20,
        min_idle: 0,
    };
    Settings {
        region: "eu-central-1".to_owned(),
        endpoint: None,
        queue_prefix: "greenroom-".to_owned(),
        table: "greenroom-runners".to_owned(),
        launch_template: Some("lt-0123456789abcdef0".to_owned()),
        subnets: vec!["subnet-1".to_owned()],
        zones: Vec::new(),
        classes: vec![
            class("large", 2, 4096, &["c6i.large", "c5.large"]),
            class("2xlarge", 8, 16_384, &["c6i.2xlarge"]),
        ],
        pace: Pace { idle: Duration::from_mins(30), ..Pace::default() },
        installation: "here".to_owned(),
    }
}

/// Compares the text between two marker lines of the page with the generated text. With `UPDATE=1`, it writes the text
/// instead, for review in the diff.
fn compare(part: &str, kind: &str, made: &str) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runners.md");
    let tracked = std::fs::read_to_string(file).unwrap();
    let (begin, end) = (format!("<!-- {part}, made from the code: begin -->\n"), format!("<!-- {part}: end -->"));
    let (before, rest) = tracked.split_once(&begin).expect("the page has no begin marker");
    let (_, after) = rest.split_once(&end).expect("the page has no end marker");
    let expected = format!("{before}{begin}```{kind}\n{}\n```\n{end}{after}", made.trim_end());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &expected).unwrap();
    } else {
        assert!(
            tracked == expected,
            "docs/runners.md differs from the code; UPDATE=1 ./scripts/test documents writes it"
        );
    }
}

/// One test for all three, because each of them may write the file.
#[test]
fn the_plan_and_the_policies_in_the_docs_are_those_of_the_code() {
    let settings = example();
    let pretty = |value| serde_json::to_string_pretty(&value).unwrap();
    compare("the plan", "text", &aws::describe(&settings).to_string());
    compare("the policy of the server", "json", &pretty(aws::policy(&settings)));
    compare("the policy of init", "json", &pretty(aws::init_policy(&settings)));
}

#[test]
fn the_cloudformation_template_has_each_resource_of_the_plan_under_a_unique_name() {
    let mut settings = example();
    // Different names that have the same letters and digits.
    settings.classes[1].name = "lar-ge".to_owned();
    settings.classes[0].name = "larGe".to_owned();
    let template = aws::describe(&settings).cloudformation();
    let resources = template["Resources"].as_object().unwrap();
    let ids: Vec<&str> = resources.keys().map(String::as_str).collect();
    assert_eq!(
        ids,
        [
            "GroupGreenroomLarGeOnDemand",
            "GroupGreenroomLarGeOnDemand2",
            "GroupGreenroomLarGeOnDemandC5Large",
            "GroupGreenroomLarGeOnDemandC6iLarge",
            "GroupGreenroomLarGeSpot",
            "GroupGreenroomLarGeSpot2",
            "GroupGreenroomLarGeSpotC5Large",
            "GroupGreenroomLarGeSpotC6iLarge",
            "QueueGreenroomLarGe",
            "QueueGreenroomLarGe2",
            "Table",
        ]
    );
    let name = |id: &str, field: &str| resources[id]["Properties"][field].as_str().unwrap().to_owned();
    assert_eq!(name("QueueGreenroomLarGe", "QueueName"), "greenroom-larGe");
    assert_eq!(name("QueueGreenroomLarGe2", "QueueName"), "greenroom-lar-ge");
    assert_eq!(name("GroupGreenroomLarGeSpot2", "AutoScalingGroupName"), "greenroom-lar-ge-spot");
}
