//! `greenroom aws init` on moto: it creates missing resources, keeps existing ones, and corrects and reports
//! differences.

use std::collections::HashMap;

use aws::{AwsError, Kind, Made, Outcome, Settings, init};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_autoscaling::types::AutoScalingGroup;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ProjectionType, ScalarAttributeType, TimeToLiveStatus,
};
use aws_sdk_sqs::types::QueueAttributeName;

use crate::moto;

fn settings() -> Settings {
    let large = moto::class("large", 1, &["c6i.large", "c5.large"], 4, 7);
    moto::settings(vec![large, moto::class("xlarge", 2, &["c6i.xlarge"], 3, 0)])
}

/// Like `settings`, with a launch template.
async fn settings_with_template() -> Settings {
    let mut settings = settings();
    let name = format!("{}template", settings.queue_prefix);
    moto::launch_template(&name, "c6i.large").await;
    settings.launch_template = Some(name);
    settings
}

async fn config() -> SdkConfig {
    let loader = aws_config::defaults(BehaviorVersion::latest()).region(Region::new(moto::REGION));
    loader.endpoint_url(moto::endpoint()).load().await
}

async fn group(name: &str) -> Option<AutoScalingGroup> {
    let client = aws_sdk_autoscaling::Client::new(&config().await);
    let answer = client.describe_auto_scaling_groups().auto_scaling_group_names(name).send().await.unwrap();
    answer.auto_scaling_groups.unwrap_or_default().pop()
}

async fn queue_attributes(name: &str) -> HashMap<QueueAttributeName, String> {
    let client = aws_sdk_sqs::Client::new(&config().await);
    let url = client.get_queue_url().queue_name(name).send().await.unwrap().queue_url.unwrap();
    let asked = client.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All).send().await;
    asked.unwrap().attributes.unwrap()
}

fn outcome(made: &Made, kind: Kind, name: &str) -> Outcome {
    let thing = made.things.iter().find(|thing| thing.kind == kind && thing.name == name);
    thing.unwrap_or_else(|| panic!("{name} is not in {made}")).outcome.clone()
}

fn all_are(made: &Made, outcome: &Outcome) -> bool {
    made.things.iter().all(|thing| thing.outcome == *outcome)
}

#[tokio::test]
async fn everything_that_is_missing_is_created_once() {
    let settings = settings_with_template().await;
    let first = init(&settings).await.unwrap();
    assert!(all_are(&first, &Outcome::Made), "{first}");
    let thing_kinds: Vec<Kind> = first.things.iter().map(|thing| thing.kind).collect();
    // Three groups of all types, and one for each of the two types of large, on demand and spot.
    assert_eq!(thing_kinds[..3], [Kind::Table, Kind::Queue, Kind::Queue]);
    assert_eq!(thing_kinds[3..], [Kind::Group; 7]);
    let second = init(&settings).await.unwrap();
    assert!(all_are(&second, &Outcome::WasThere), "{second}");
    assert_eq!(second.things.len(), first.things.len());
}

#[tokio::test]
async fn the_table_has_its_index_its_billing_and_its_expiry() {
    let settings = settings();
    init(&settings).await.unwrap();
    let client = aws_sdk_dynamodb::Client::new(&config().await);
    let table = client.describe_table().table_name(&settings.table).send().await.unwrap().table.unwrap();
    assert_eq!(table.billing_mode_summary().unwrap().billing_mode(), Some(&BillingMode::PayPerRequest));
    let keys = |schema: &[KeySchemaElement]| -> Vec<(String, KeyType)> {
        schema.iter().map(|element| (element.attribute_name.clone(), element.key_type.clone())).collect()
    };
    assert_eq!(keys(table.key_schema()), [("id".to_owned(), KeyType::Hash)]);
    let [index] = table.global_secondary_indexes() else { panic!("{table:?}") };
    assert_eq!(index.index_name(), Some("by_state"));
    assert_eq!(keys(index.key_schema()), [("state".to_owned(), KeyType::Hash), ("id".to_owned(), KeyType::Range)]);
    assert_eq!(index.projection().unwrap().projection_type(), Some(&ProjectionType::All));
    let expiry = client.describe_time_to_live().table_name(&settings.table).send().await.unwrap();
    let expiry = expiry.time_to_live_description.unwrap();
    assert_eq!(expiry.time_to_live_status(), Some(&TimeToLiveStatus::Enabled));
    assert_eq!(expiry.attribute_name(), Some("expires"));
}

#[tokio::test]
async fn groups_have_the_types_the_share_on_demand_and_the_size_of_their_class() {
    let settings = settings_with_template().await;
    init(&settings).await.unwrap();
    for (name, max, share) in [("large-on-demand", 4, 100), ("large-spot", 7, 0), ("xlarge-on-demand", 3, 100)] {
        let group = group(&format!("{}{name}", settings.queue_prefix)).await.expect(name);
        assert_eq!(
            (group.min_size(), group.desired_capacity(), group.max_size()),
            (Some(0), Some(0), Some(max)),
            "{name}"
        );
        assert_eq!(group.new_instances_protected_from_scale_in(), Some(true), "{name}");
        assert_eq!(group.availability_zones(), [moto::ZONE]);
        assert_eq!(group.suspended_processes().len(), 1, "{name}");
        assert_eq!(group.suspended_processes()[0].process_name(), Some("AZRebalance"), "{name}");
        let policy = group.mixed_instances_policy().unwrap();
        let distribution = policy.instances_distribution().unwrap();
        assert_eq!(distribution.on_demand_percentage_above_base_capacity(), Some(share), "{name}");
        assert_eq!(distribution.spot_allocation_strategy(), Some("price-capacity-optimized"), "{name}");
        let template = policy.launch_template().unwrap();
        let types: Vec<_> = template.overrides().iter().filter_map(|one| one.instance_type()).collect();
        assert_eq!(types, if name.starts_with('x') { vec!["c6i.xlarge"] } else { vec!["c6i.large", "c5.large"] });
        let template = template.launch_template_specification().unwrap();
        assert_eq!(template.launch_template_name(), settings.launch_template.as_deref(), "{name}");
    }
    // This class may have no machines of this kind.
    assert_eq!(group(&format!("{}xlarge-spot", settings.queue_prefix)).await, None);
}

#[tokio::test]
async fn a_launch_template_can_be_given_by_id_and_subnets_can_be_set() {
    let mut settings = settings();
    let id = moto::launch_template(&format!("{}template", settings.queue_prefix), "c6i.large").await;
    settings.launch_template = Some(id.clone());
    settings.subnets = vec![moto::subnet().await];
    init(&settings).await.unwrap();
    let group = group(&format!("{}large-spot", settings.queue_prefix)).await.unwrap();
    assert_eq!(group.vpc_zone_identifier(), Some(settings.subnets[0].as_str()));
    let template = group.mixed_instances_policy().unwrap().launch_template().unwrap();
    assert_eq!(template.launch_template_specification().unwrap().launch_template_id(), Some(id.as_str()));
}

#[tokio::test]
async fn without_a_launch_template_no_group_is_made_or_touched() {
    let mut settings = settings_with_template().await;
    init(&settings).await.unwrap();
    settings.launch_template = None;
    settings.classes[0].max = 100;
    let made = init(&settings).await.unwrap();
    assert!(made.things.iter().all(|thing| thing.kind != Kind::Group), "{made}");
    let group = group(&format!("{}large-on-demand", settings.queue_prefix)).await.unwrap();
    assert_eq!(group.max_size(), Some(4));
}

#[tokio::test]
async fn a_queue_with_other_attributes_gets_those_of_the_pool_and_keeps_the_rest() {
    let settings = settings();
    let name = settings.queue("large");
    let client = aws_sdk_sqs::Client::new(&config().await);
    let call = client.create_queue().queue_name(&name).attributes(QueueAttributeName::VisibilityTimeout, "99");
    call.attributes(QueueAttributeName::MaximumMessageSize, "2048").send().await.unwrap();
    let made = init(&settings).await.unwrap();
    let message = match outcome(&made, Kind::Queue, &name) {
        Outcome::Changed(message) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(message, "MessageRetentionPeriod from 345600 to 60, VisibilityTimeout from 99 to 30");
    let attributes = queue_attributes(&name).await;
    let of = |name: QueueAttributeName| attributes.get(&name).map(String::as_str);
    assert_eq!(of(QueueAttributeName::MessageRetentionPeriod), Some("60"));
    assert_eq!(of(QueueAttributeName::VisibilityTimeout), Some("30"));
    assert_eq!(of(QueueAttributeName::ReceiveMessageWaitTimeSeconds), Some("0"));
    assert_eq!(of(QueueAttributeName::MaximumMessageSize), Some("2048"));
    assert_eq!(outcome(&init(&settings).await.unwrap(), Kind::Queue, &name), Outcome::WasThere);
}

#[tokio::test]
async fn a_group_follows_its_class_and_keeps_its_machines() {
    let mut settings = settings_with_template().await;
    init(&settings).await.unwrap();
    let name = format!("{}large-on-demand", settings.queue_prefix);
    let client = aws_sdk_autoscaling::Client::new(&config().await);
    client.set_desired_capacity().auto_scaling_group_name(&name).desired_capacity(3).send().await.unwrap();
    let before = group(&name).await.unwrap();

    settings.classes[0].max = 9;
    let changed = |message: &str| Outcome::Changed(message.to_owned());
    let made = init(&settings).await.unwrap();
    assert_eq!(outcome(&made, Kind::Group, &name), changed("MaxSize from 4 to 9"));
    // A group that is made smaller than its size would have to end machines.
    settings.classes[0].max = 1;
    let made = init(&settings).await.unwrap();
    assert_eq!(outcome(&made, Kind::Group, &name), changed("MaxSize from 9 to 3"));

    let after = group(&name).await.unwrap();
    assert_eq!((after.max_size(), after.desired_capacity()), (Some(3), Some(3)));
    assert_eq!(after.instances().len(), 3);
    assert_eq!(after.instances(), before.instances());
    assert_eq!(after.mixed_instances_policy(), before.mixed_instances_policy());
}

#[tokio::test]
async fn a_group_that_somebody_else_made_is_protected() {
    let settings = settings_with_template().await;
    let name = format!("{}large-on-demand", settings.queue_prefix);
    let template = aws_sdk_autoscaling::types::LaunchTemplateSpecification::builder()
        .launch_template_name(settings.launch_template.clone().unwrap())
        .build();
    let client = aws_sdk_autoscaling::Client::new(&config().await);
    let call = client.create_auto_scaling_group().auto_scaling_group_name(&name).min_size(0).max_size(4);
    call.launch_template(template).availability_zones(moto::ZONE).send().await.unwrap();
    let made = init(&settings).await.unwrap();
    let message = "new machines are protected from scale-in, AZRebalance is suspended";
    assert_eq!(outcome(&made, Kind::Group, &name), Outcome::Changed(message.to_owned()));
    assert_eq!(outcome(&init(&settings).await.unwrap(), Kind::Group, &name), Outcome::WasThere);
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused_before_anything_is_made() {
    let settings = settings();
    let client = aws_sdk_dynamodb::Client::new(&config().await);
    let attribute = AttributeDefinition::builder().attribute_name("other").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("other").key_type(KeyType::Hash);
    let call = client.create_table().table_name(&settings.table).billing_mode(BillingMode::PayPerRequest);
    call.attribute_definitions(attribute.build().unwrap()).key_schema(key.build().unwrap()).send().await.unwrap();
    let error = init(&settings).await.unwrap_err();
    assert!(matches!(error, AwsError::Refused { .. }), "{error:?}");
    assert!(!error.retryable());
    assert!(error.to_string().contains("is not the table of a runner pool"), "{error}");
    let client = aws_sdk_sqs::Client::new(&config().await);
    assert!(client.get_queue_url().queue_name(settings.queue("large")).send().await.is_err());
}

#[tokio::test]
async fn a_missing_launch_template_is_reported_with_the_message_of_aws() {
    let mut settings = settings();
    settings.launch_template = Some("missing".to_owned());
    let error = init(&settings).await.unwrap_err();
    assert!(error.to_string().contains("CreateAutoScalingGroup"), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[tokio::test]
async fn several_inits_at_once_do_not_disturb_each_other() {
    let settings = settings_with_template().await;
    let (one, two, three) = tokio::join!(init(&settings), init(&settings), init(&settings));
    one.and(two).and(three).unwrap();
    let made = init(&settings).await.unwrap();
    assert!(all_are(&made, &Outcome::WasThere), "{made}");
}
