//! The AWS resources that a runner pool needs: a table, a queue for each class, and Auto Scaling groups. This module
//! does not call AWS; `init` creates the resources that it describes.

use std::fmt;

use domain::UsageClass;
use serde_json::{Map, Value, json};

use crate::Settings;

pub(crate) const KEY: &str = "id";
pub(crate) const INDEX: &str = "by_state";
pub(crate) const INDEX_KEY: &str = "state";
pub(crate) const EXPIRES: &str = "expires";

/// A queue only repeats the table, and each message is valid for less than a minute. So the queue has the shortest
/// retention that SQS allows.
pub(crate) const QUEUE_ATTRIBUTES: [(&str, u32); 3] =
    [("MessageRetentionPeriod", 60), ("VisibilityTimeout", 30), ("ReceiveMessageWaitTimeSeconds", 0)];

/// Suspended, because Auto Scaling would end runners, also busy ones, to balance its zones.
pub(crate) const SUSPENDED: &str = "AZRebalance";

/// CloudFormation cannot name the default version of a launch template, so the version is a parameter.
const VERSION: &str = "LaunchTemplateVersion";

/// The planned resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub table: String,
    pub queues: Vec<String>,
    /// Empty if no launch template is set. Then the operator creates the groups, or the pool does not grow.
    pub groups: Vec<PlannedGroup>,
    /// The names of groups that the pool uses if they exist.
    pub group_names: Vec<String>,
}

/// A planned group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedGroup {
    pub name: String,
    pub usage_class: UsageClass,
    pub instance_types: Vec<String>,
    pub max: u32,
    pub template: Template,
    pub subnets: Vec<String>,
    /// Only if no subnets are set.
    pub zones: Vec<String>,
}

/// A launch template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    Id(String),
    Name(String),
}

/// The resources that a pool with these settings needs.
pub fn describe(settings: &Settings) -> Plan {
    let all = || settings.classes.iter().flat_map(|class| UsageClass::ALL.map(|usage| (class, usage)));
    let named = || {
        let of = |(class, usage)| settings.groups_of(class, usage).into_iter().map(move |group| (class, usage, group));
        all().flat_map(of)
    };
    let groups = settings.launch_template.iter().flat_map(|template| {
        named().map(|(class, usage_class, (name, types))| PlannedGroup {
            name,
            usage_class,
            instance_types: types.into_iter().map(str::to_owned).collect(),
            max: class.most(usage_class),
            template: Template::read(template),
            subnets: settings.subnets.clone(),
            zones: if settings.subnets.is_empty() { settings.zones.clone() } else { Vec::new() },
        })
    });
    Plan {
        table: settings.table.clone(),
        queues: settings.classes.iter().map(|class| settings.queue(&class.name)).collect(),
        groups: groups.filter(|group| group.max > 0).collect(),
        group_names: named().map(|(_, _, (name, _))| name).collect(),
    }
}

impl Template {
    fn read(text: &str) -> Self {
        let text = text.to_owned();
        if text.starts_with("lt-") { Self::Id(text) } else { Self::Name(text) }
    }
}

impl PlannedGroup {
    /// The share of on-demand machines in the group: 100 or 0 percent.
    pub(crate) fn on_demand_percentage(&self) -> i32 {
        match self.usage_class {
            UsageClass::OnDemand => 100,
            UsageClass::Spot => 0,
        }
    }
}

impl Plan {
    /// The plan as a CloudFormation template, for operators who use CloudFormation.
    pub fn cloudformation(&self) -> Value {
        let mut resources = Map::new();
        add(&mut resources, "Table", "AWS::DynamoDB::Table", table_properties(&self.table));
        for queue in &self.queues {
            let mut properties = Map::from_iter([("QueueName".to_owned(), json!(queue))]);
            properties.extend(QUEUE_ATTRIBUTES.map(|(name, value)| (name.to_owned(), json!(value))));
            add(&mut resources, &logical_id("Queue", queue), "AWS::SQS::Queue", properties.into());
        }
        for group in &self.groups {
            let id = logical_id("Group", &group.name);
            add(&mut resources, &id, "AWS::AutoScaling::AutoScalingGroup", group_properties(group));
        }
        let mut template = json!({
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": format!(
                "A runner pool of Greenroom. CloudFormation cannot suspend the process {SUSPENDED} of the groups: suspend \
                 it after the groups are made."
            ),
            "Resources": resources,
        });
        if !self.groups.is_empty() {
            let description = "The version of the launch template, as a number.";
            template["Parameters"] = json!({ VERSION: { "Type": "String", "Description": description } });
        }
        template
    }
}

fn add(resources: &mut Map<String, Value>, id: &str, kind: &str, properties: Value) {
    let taken = (2..).map(|number| format!("{id}{number}"));
    let id = std::iter::once(id.to_owned()).chain(taken).find(|id| !resources.contains_key(id));
    resources.extend(id.map(|id| (id, json!({ "Type": kind, "Properties": properties }))));
}

fn table_properties(name: &str) -> Value {
    let key = |name: &str, kind: &str| json!({ "AttributeName": name, "KeyType": kind });
    let text = |name: &str| json!({ "AttributeName": name, "AttributeType": "S" });
    json!({
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [text(KEY), text(INDEX_KEY)],
        "KeySchema": [key(KEY, "HASH")],
        "GlobalSecondaryIndexes": [{
            "IndexName": INDEX,
            "KeySchema": [key(INDEX_KEY, "HASH"), key(KEY, "RANGE")],
            "Projection": { "ProjectionType": "ALL" },
        }],
        "TimeToLiveSpecification": { "AttributeName": EXPIRES, "Enabled": true },
    })
}

fn group_properties(group: &PlannedGroup) -> Value {
    let (name, value) = match &group.template {
        Template::Id(id) => ("LaunchTemplateId", id),
        Template::Name(name) => ("LaunchTemplateName", name),
    };
    let overrides: Vec<Value> = group.instance_types.iter().map(|name| json!({ "InstanceType": name })).collect();
    let mut properties = json!({
        "AutoScalingGroupName": group.name,
        "MinSize": "0",
        "MaxSize": group.max.to_string(),
        "NewInstancesProtectedFromScaleIn": true,
        "MixedInstancesPolicy": {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": { name: value, "Version": { "Ref": VERSION } },
                "Overrides": overrides,
            },
            "InstancesDistribution": {
                "OnDemandAllocationStrategy": "prioritized",
                "OnDemandBaseCapacity": 0,
                "OnDemandPercentageAboveBaseCapacity": group.on_demand_percentage(),
                "SpotAllocationStrategy": "price-capacity-optimized",
            },
        },
    });
    let (name, values) = match group.subnets.as_slice() {
        [] => ("AvailabilityZones", &group.zones),
        subnets => ("VPCZoneIdentifier", &subnets.to_vec()),
    };
    properties[name] = json!(values);
    properties
}

/// Logical ids in CloudFormation have only letters and digits.
fn logical_id(kind: &str, name: &str) -> String {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    let capitals = parts.map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    std::iter::once(kind.to_owned()).chain(capitals).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {}", self.table)?;
        writeln!(
            f,
            "    key `{KEY}`; index `{INDEX}` on `{INDEX_KEY}` and `{KEY}`; billed per request; items expire at `{EXPIRES}`"
        )?;
        for queue in &self.queues {
            writeln!(f, "queue {queue}")?;
            let attributes = QUEUE_ATTRIBUTES.map(|(name, value)| format!("{name} {value}"));
            writeln!(f, "    {}", attributes.join(", "))?;
        }
        for group in &self.groups {
            writeln!(f, "group {}\n    {group}", group.name)?;
        }
        if self.groups.is_empty() {
            writeln!(f, "no groups, because no launch template is set; the pool uses these groups if they exist:")?;
            writeln!(f, "    {}", self.group_names.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for PlannedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.instance_types.join(", ");
        write!(f, "0 to {} machines, {}, of {types}; launch template {}", self.max, self.usage_class, self.template)?;
        match (self.subnets.as_slice(), self.zones.as_slice()) {
            ([], []) => Ok(()),
            ([], zones) => write!(f, "; zones {}", zones.join(", ")),
            (subnets, _) => write!(f, "; subnets {}", subnets.join(", ")),
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Id(text) | Self::Name(text)) = self;
        f.write_str(text)
    }
}
