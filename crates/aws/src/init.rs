//! Creates the missing parts of a runner pool. It changes an existing part only if the pool would not work otherwise,
//! and reports every change. An operator may run it any number of times, also while runners work.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use aws_sdk_autoscaling::types::{
    AutoScalingGroup, InstancesDistribution, LaunchTemplate, LaunchTemplateOverrides, LaunchTemplateSpecification,
    MixedInstancesPolicy,
};
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection, ProjectionType,
    ScalarAttributeType, TableDescription, TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};
use aws_sdk_sqs::types::QueueAttributeName;
use serde::Serialize;
use tokio::time::Instant;

use crate::clients::Clients;
use crate::groups::{self, size};
use crate::plan::{EXPIRES, INDEX, INDEX_KEY, KEY, PlannedGroup, QUEUE_ATTRIBUTES, SUSPENDED, Template, describe};
use crate::{AwsError, Settings};

/// How long to wait for a new table. AWS needs some seconds.
const TABLE_TIMEOUT: Duration = Duration::from_mins(5);
const TABLE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The result for each part, in the order of the checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Made {
    pub things: Vec<Thing>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thing {
    pub kind: Kind,
    pub name: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Table,
    Queue,
    Group,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "words")]
pub enum Outcome {
    Made,
    WasThere,
    /// The part existed and differed. The text says how.
    Changed(String),
}

/// Creates the missing parts.
pub async fn init(settings: &Settings) -> Result<Made, AwsError> {
    let clients = Clients::connect(settings).await;
    let plan = describe(settings);
    let thing = |kind, name: &str, outcome| Thing { kind, name: name.to_owned(), outcome };
    let mut things = vec![thing(Kind::Table, &plan.table, table(&clients.dynamodb, &plan.table).await?)];
    for name in &plan.queues {
        things.push(thing(Kind::Queue, name, queue(&clients.sqs, name).await?));
    }
    let names: Vec<String> = plan.groups.iter().map(|group| group.name.clone()).collect();
    let there = groups::describe(&clients.autoscaling, &names).await?;
    for planned in &plan.groups {
        let there = there.iter().find(|group| group.auto_scaling_group_name() == Some(&planned.name));
        things.push(thing(Kind::Group, &planned.name, group(&clients.autoscaling, planned, there).await?));
    }
    Ok(Made { things })
}

// --- The table ----------------------------------------------------------------------------------------------------

async fn table(client: &aws_sdk_dynamodb::Client, name: &str) -> Result<Outcome, AwsError> {
    let made = match describe_table(client, name).await? {
        Some(there) => {
            check_table(name, &there)?;
            false
        }
        None => create_table(client, name).await?,
    };
    await_table(client, name).await?;
    let changed = expire(client, name).await?;
    Ok(match (made, changed) {
        (true, _) => Outcome::Made,
        (false, true) => Outcome::Changed(format!("items expire at `{EXPIRES}`")),
        (false, false) => Outcome::WasThere,
    })
}

async fn describe_table(client: &aws_sdk_dynamodb::Client, name: &str) -> Result<Option<TableDescription>, AwsError> {
    match client.describe_table().table_name(name).send().await {
        Ok(answer) => Ok(answer.table),
        Err(error) if error.as_service_error().is_some_and(|error| error.is_resource_not_found_exception()) => Ok(None),
        Err(error) => Err(AwsError::new("DescribeTable", error)),
    }
}

/// Refuses a table with other keys than a runner pool has, so that the pool never writes into a foreign table.
fn check_table(name: &str, there: &TableDescription) -> Result<(), AwsError> {
    let keys = |schema: &[KeySchemaElement]| -> Vec<String> {
        schema.iter().map(|element| element.attribute_name.clone()).collect()
    };
    let index = there.global_secondary_indexes().iter().find(|index| index.index_name() == Some(INDEX));
    let fits =
        keys(there.key_schema()) == [KEY] && index.is_some_and(|index| keys(index.key_schema()) == [INDEX_KEY, KEY]);
    if fits {
        return Ok(());
    }
    let message = format!(
        "the table {name} exists, but is not the table of a runner pool: its key must be `{KEY}`, and its index `{INDEX}` \
         must have the keys `{INDEX_KEY}` and `{KEY}`"
    );
    Err(AwsError::Refused { operation: "DescribeTable", message })
}

/// Creates the table. Returns false if another process created it.
async fn create_table(client: &aws_sdk_dynamodb::Client, name: &str) -> Result<bool, AwsError> {
    let (attributes, key, index) =
        table_shape().map_err(|error| AwsError::malformed("CreateTable", error.to_string()))?;
    let call = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    let call = call.set_attribute_definitions(Some(attributes)).key_schema(key).global_secondary_indexes(index);
    match call.send().await {
        Ok(_) => Ok(true),
        // Another process created it first.
        Err(error) if error.as_service_error().is_some_and(|error| error.is_resource_in_use_exception()) => Ok(false),
        Err(error) => Err(AwsError::new("CreateTable", error)),
    }
}

fn table_shape() -> Result<(Vec<AttributeDefinition>, KeySchemaElement, GlobalSecondaryIndex), BuildError> {
    let text =
        |name| AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S).build();
    let key = |name, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    let index = GlobalSecondaryIndex::builder()
        .index_name(INDEX)
        .key_schema(key(INDEX_KEY, KeyType::Hash)?)
        .key_schema(key(KEY, KeyType::Range)?)
        .projection(Projection::builder().projection_type(ProjectionType::All).build())
        .build()?;
    Ok((vec![text(KEY)?, text(INDEX_KEY)?], key(KEY, KeyType::Hash)?, index))
}

async fn await_table(client: &aws_sdk_dynamodb::Client, name: &str) -> Result<(), AwsError> {
    let deadline = Instant::now() + TABLE_TIMEOUT;
    loop {
        let status = describe_table(client, name).await?.and_then(|there| there.table_status);
        // A table in state `Updating` can be used.
        if matches!(status, Some(TableStatus::Active | TableStatus::Updating)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let message =
                format!("the table {name} is still {}", status.as_ref().map_or("missing", TableStatus::as_str));
            return Err(AwsError::Busy { operation: "DescribeTable", message });
        }
        tokio::time::sleep(TABLE_POLL_INTERVAL).await;
    }
}

/// Turns on the expiry of items in DynamoDB. Returns whether this is a change.
async fn expire(client: &aws_sdk_dynamodb::Client, name: &str) -> Result<bool, AwsError> {
    let asked = client.describe_time_to_live().table_name(name).send().await;
    let there = asked.map_err(|error| AwsError::new("DescribeTimeToLive", error))?.time_to_live_description;
    let status = there.as_ref().and_then(|there| there.time_to_live_status());
    if matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)) {
        return match there.and_then(|there| there.attribute_name) {
            Some(other) if other != EXPIRES => {
                let message = format!("items of the table {name} already expire at `{other}`, not at `{EXPIRES}`");
                Err(AwsError::Refused { operation: "DescribeTimeToLive", message })
            }
            _ => Ok(false),
        };
    }
    let specification = TimeToLiveSpecification::builder().attribute_name(EXPIRES).enabled(true).build();
    let specification = specification.map_err(|error| AwsError::malformed("UpdateTimeToLive", error.to_string()))?;
    let call = client.update_time_to_live().table_name(name).time_to_live_specification(specification);
    match call.send().await {
        Ok(_) => Ok(true),
        // Another process turned it on first.
        Err(error) if error.message().is_some_and(|message| message.contains("already enabled")) => Ok(false),
        Err(error) => Err(AwsError::new("UpdateTimeToLive", error)),
    }
}

// --- Queues -------------------------------------------------------------------------------------------------------

async fn queue(client: &aws_sdk_sqs::Client, name: &str) -> Result<Outcome, AwsError> {
    let wanted: HashMap<QueueAttributeName, String> =
        QUEUE_ATTRIBUTES.iter().map(|(name, value)| (QueueAttributeName::from(*name), value.to_string())).collect();
    let url = match client.get_queue_url().queue_name(name).send().await {
        Ok(answer) => answer.queue_url.unwrap_or_default(),
        Err(error) if error.as_service_error().is_some_and(|error| error.is_queue_does_not_exist()) => {
            let call = client.create_queue().queue_name(name).set_attributes(Some(wanted));
            call.send().await.map_err(|error| AwsError::new("CreateQueue", error))?;
            return Ok(Outcome::Made);
        }
        Err(error) => return Err(AwsError::new("GetQueueUrl", error)),
    };
    let names = wanted.keys().cloned().collect();
    let asked = client.get_queue_attributes().queue_url(&url).set_attribute_names(Some(names)).send().await;
    let there = asked.map_err(|error| AwsError::new("GetQueueAttributes", error))?.attributes.unwrap_or_default();
    let mut differing: Vec<_> = wanted.into_iter().filter(|(name, value)| there.get(name) != Some(value)).collect();
    if differing.is_empty() {
        return Ok(Outcome::WasThere);
    }
    differing.sort();
    let message = differing.iter().map(|(name, value)| {
        let before = there.get(name).map_or("nothing", String::as_str);
        format!("{} from {before} to {value}", name.as_str())
    });
    let message = message.collect::<Vec<_>>().join(", ");
    let call = client.set_queue_attributes().queue_url(&url).set_attributes(Some(differing.into_iter().collect()));
    call.send().await.map_err(|error| AwsError::new("SetQueueAttributes", error))?;
    Ok(Outcome::Changed(message))
}

// --- Groups -------------------------------------------------------------------------------------------------------

async fn group(
    client: &aws_sdk_autoscaling::Client,
    planned: &PlannedGroup,
    there: Option<&AutoScalingGroup>,
) -> Result<Outcome, AwsError> {
    let Some(there) = there else { return create_group(client, planned).await };
    let mut changes = Vec::new();
    let max = planned.max.max(there.desired_capacity().unwrap_or_default().unsigned_abs());
    let resized = there.max_size() != Some(size(max));
    if resized {
        changes.push(format!("MaxSize from {} to {max}", there.max_size().unwrap_or_default()));
    }
    let unprotected = there.new_instances_protected_from_scale_in() != Some(true);
    if unprotected {
        changes.push("new machines are protected from scale-in".to_owned());
    }
    if resized || unprotected {
        let call = client.update_auto_scaling_group().auto_scaling_group_name(&planned.name);
        let call = call.max_size(size(max)).new_instances_protected_from_scale_in(true);
        // Repeats the policy unchanged, because moto removes a policy that the call omits.
        let call = call.set_mixed_instances_policy(there.mixed_instances_policy().cloned().map(with_one_name));
        call.send().await.map_err(|error| AwsError::new("UpdateAutoScalingGroup", error))?;
    }
    if !there.suspended_processes().iter().any(|process| process.process_name() == Some(SUSPENDED)) {
        suspend(client, &planned.name).await?;
        changes.push(format!("{SUSPENDED} is suspended"));
    }
    Ok(if changes.is_empty() { Outcome::WasThere } else { Outcome::Changed(changes.join(", ")) })
}

async fn create_group(client: &aws_sdk_autoscaling::Client, planned: &PlannedGroup) -> Result<Outcome, AwsError> {
    let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    let call = client
        .create_auto_scaling_group()
        .auto_scaling_group_name(&planned.name)
        .min_size(0)
        .desired_capacity(0)
        .max_size(size(planned.max))
        .new_instances_protected_from_scale_in(true)
        .mixed_instances_policy(mixed(planned))
        .set_vpc_zone_identifier(some(&planned.subnets).map(|subnets| subnets.join(",")))
        .set_availability_zones(some(&planned.zones));
    let made = match call.send().await {
        Ok(_) => true,
        // Another process created it first.
        Err(error) if error.as_service_error().is_some_and(|error| error.is_already_exists_fault()) => false,
        Err(error) => return Err(AwsError::new("CreateAutoScalingGroup", error)),
    };
    suspend(client, &planned.name).await?;
    Ok(if made { Outcome::Made } else { Outcome::WasThere })
}

fn mixed(planned: &PlannedGroup) -> MixedInstancesPolicy {
    let template = match &planned.template {
        Template::Id(id) => LaunchTemplateSpecification::builder().launch_template_id(id),
        Template::Name(name) => LaunchTemplateSpecification::builder().launch_template_name(name),
    };
    // The owner of the template decides which version is the default.
    let template = LaunchTemplate::builder().launch_template_specification(template.version("$Default").build());
    let types =
        planned.instance_types.iter().map(|name| LaunchTemplateOverrides::builder().instance_type(name).build());
    let distribution = InstancesDistribution::builder()
        .on_demand_allocation_strategy("prioritized")
        .on_demand_base_capacity(0)
        .on_demand_percentage_above_base_capacity(planned.on_demand_percentage())
        .spot_allocation_strategy("price-capacity-optimized");
    MixedInstancesPolicy::builder()
        .launch_template(template.set_overrides(Some(types.collect())).build())
        .instances_distribution(distribution.build())
        .build()
}

/// AWS describes a template with its id and its name, but accepts only one of them in a request.
fn with_one_name(mut policy: MixedInstancesPolicy) -> MixedInstancesPolicy {
    let Some(template) = &mut policy.launch_template else { return policy };
    let overrides = template.overrides.iter_mut().flatten();
    let templates = overrides.filter_map(|one| one.launch_template_specification.as_mut());
    for template in templates.chain(template.launch_template_specification.as_mut()) {
        if template.launch_template_id.is_some() {
            template.launch_template_name = None;
        }
    }
    policy
}

async fn suspend(client: &aws_sdk_autoscaling::Client, group: &str) -> Result<(), AwsError> {
    let call = client.suspend_processes().auto_scaling_group_name(group).scaling_processes(SUSPENDED);
    call.send().await.map_err(|error| AwsError::new("SuspendProcesses", error))?;
    Ok(())
}

// --- Texts --------------------------------------------------------------------------------------------------------

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.things.iter().try_for_each(|thing| writeln!(f, "{thing}"))
    }
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Table => "table",
            Kind::Queue => "queue",
            Kind::Group => "group",
        };
        write!(f, "{kind} {}: ", self.name)?;
        match &self.outcome {
            Outcome::Made => f.write_str("made"),
            Outcome::WasThere => f.write_str("already exists"),
            Outcome::Changed(message) => write!(f, "changed: {message}"),
        }
    }
}
