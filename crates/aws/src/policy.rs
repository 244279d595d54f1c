//! IAM policies: the permissions of the server, and the extra permissions of `greenroom aws init`. They allow exactly
//! the calls that this crate makes, on the names in its settings. `CALLS` lists every operation, and a test compares
//! the list with the code.

use serde_json::{Value, json};

use crate::plan::{INDEX, describe};
use crate::{Plan, Settings};

/// The caller of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Server,
    Init,
    Both,
    /// Only `greenroom bench match`, on resources that it created.
    Bench,
}

/// The resource of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Table,
    Index,
    Queues,
    Groups,
    /// IAM has no narrower permission for these read calls.
    Everything,
}

/// Every operation that this crate calls, and the IAM actions that it needs. A transaction needs the actions of its
/// parts. SQS batch calls use the actions of single messages.
const CALLS: &[(&str, By, On, &[&str])] = &[
    ("DescribeTable", By::Both, On::Table, &["dynamodb:DescribeTable"]),
    ("GetItem", By::Server, On::Table, &["dynamodb:GetItem"]),
    ("BatchGetItem", By::Server, On::Table, &["dynamodb:BatchGetItem"]),
    ("PutItem", By::Server, On::Table, &["dynamodb:PutItem"]),
    ("DeleteItem", By::Server, On::Table, &["dynamodb:DeleteItem"]),
    ("TransactWriteItems", By::Server, On::Table, &["dynamodb:DeleteItem", "dynamodb:PutItem"]),
    ("Query", By::Server, On::Index, &["dynamodb:Query"]),
    ("CreateTable", By::Init, On::Table, &["dynamodb:CreateTable"]),
    ("DescribeTimeToLive", By::Init, On::Table, &["dynamodb:DescribeTimeToLive"]),
    ("UpdateTimeToLive", By::Init, On::Table, &["dynamodb:UpdateTimeToLive"]),
    ("DeleteTable", By::Bench, On::Table, &["dynamodb:DeleteTable"]),
    ("DeleteQueue", By::Bench, On::Queues, &["sqs:DeleteQueue"]),
    ("GetQueueUrl", By::Both, On::Queues, &["sqs:GetQueueUrl"]),
    ("ReceiveMessage", By::Server, On::Queues, &["sqs:ReceiveMessage"]),
    ("DeleteMessageBatch", By::Server, On::Queues, &["sqs:DeleteMessage"]),
    ("SendMessageBatch", By::Server, On::Queues, &["sqs:SendMessage"]),
    ("CreateQueue", By::Init, On::Queues, &["sqs:CreateQueue"]),
    ("GetQueueAttributes", By::Init, On::Queues, &["sqs:GetQueueAttributes"]),
    ("SetQueueAttributes", By::Init, On::Queues, &["sqs:SetQueueAttributes"]),
    ("DescribeAutoScalingGroups", By::Both, On::Everything, &["autoscaling:DescribeAutoScalingGroups"]),
    ("DescribeAutoScalingInstances", By::Server, On::Everything, &["autoscaling:DescribeAutoScalingInstances"]),
    ("SetDesiredCapacity", By::Server, On::Groups, &["autoscaling:SetDesiredCapacity"]),
    (
        "TerminateInstanceInAutoScalingGroup",
        By::Server,
        On::Groups,
        &["autoscaling:TerminateInstanceInAutoScalingGroup"],
    ),
    ("CreateAutoScalingGroup", By::Init, On::Groups, &["autoscaling:CreateAutoScalingGroup"]),
    ("UpdateAutoScalingGroup", By::Init, On::Groups, &["autoscaling:UpdateAutoScalingGroup"]),
    ("SuspendProcesses", By::Init, On::Groups, &["autoscaling:SuspendProcesses"]),
];

/// The permissions that the server always needs.
pub fn policy(settings: &Settings) -> Value {
    document(statements(settings, By::Server))
}

/// The permissions that `greenroom aws init` needs once.
pub fn init_policy(settings: &Settings) -> Value {
    let mut statements = statements(settings, By::Init);
    if let Some(template) = &settings.launch_template {
        statements.extend(for_groups(settings, template));
    }
    document(statements)
}

fn document(statements: Vec<Value>) -> Value {
    json!({ "Version": "2012-10-17", "Statement": statements })
}

fn statements(settings: &Settings, by: By) -> Vec<Value> {
    let plan = describe(settings);
    let parts = [
        ("Table", On::Table),
        ("Index", On::Index),
        ("Queues", On::Queues),
        ("Groups", On::Groups),
        ("Look", On::Everything),
    ];
    let parts = parts.into_iter().filter_map(|(name, on)| {
        let calls = CALLS.iter().filter(|call| call.2 == on && (call.1 == by || call.1 == By::Both));
        let mut actions: Vec<&str> = calls.flat_map(|call| call.3.iter().copied()).collect();
        actions.sort_unstable();
        actions.dedup();
        let makes_groups = by == By::Server || settings.launch_template.is_some();
        let needed = makes_groups || !matches!(on, On::Groups | On::Everything);
        (needed && !actions.is_empty()).then(
            || json!({ "Sid": name, "Effect": "Allow", "Action": actions, "Resource": resources(settings, &plan, on) }),
        )
    });
    parts.collect()
}

fn resources(settings: &Settings, plan: &Plan, on: On) -> Vec<String> {
    let arn = |service: &str, rest: &str| format!("arn:{}:{service}:{}:*:{rest}", partition(settings), settings.region);
    match on {
        On::Table => vec![arn("dynamodb", &format!("table/{}", plan.table))],
        On::Index => vec![arn("dynamodb", &format!("table/{}/index/{INDEX}", plan.table))],
        On::Queues => plan.queues.iter().map(|name| arn("sqs", name)).collect(),
        On::Groups => {
            let names = plan.group_names.iter();
            names.map(|name| arn("autoscaling", &format!("autoScalingGroup:*:autoScalingGroupName/{name}"))).collect()
        }
        On::Everything => vec!["*".to_owned()],
    }
}

/// Auto Scaling checks that the creator of a group may also start its machines, and it needs a service-linked role.
fn for_groups(settings: &Settings, template: &str) -> [Value; 2] {
    let partition = partition(settings);
    // The id is unknown if the settings give the template by name.
    let template = if template.starts_with("lt-") { template } else { "*" };
    let template = format!("arn:{partition}:ec2:{}:*:launch-template/{template}", settings.region);
    let service = "autoscaling.amazonaws.com";
    let role = format!("arn:{partition}:iam::*:role/aws-service-role/{service}/AWSServiceRoleForAutoScaling");
    [
        json!({
            "Sid": "Machines",
            "Effect": "Allow",
            "Action": ["ec2:RunInstances"],
            "Resource": ["*"],
            "Condition": { "ArnLike": { "ec2:LaunchTemplate": template } },
        }),
        json!({
            "Sid": "Role",
            "Effect": "Allow",
            "Action": ["iam:CreateServiceLinkedRole"],
            "Resource": [role],
            "Condition": { "StringEquals": { "iam:AWSServiceName": service } },
        }),
    ]
}

/// China and the US government regions are separate AWS partitions.
fn partition(settings: &Settings) -> &'static str {
    match settings.region.as_str() {
        region if region.starts_with("cn-") => "aws-cn",
        region if region.starts_with("us-gov-") => "aws-us-gov",
        _ => "aws",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::CALLS;

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// The operation names that the code passes to its errors.
    fn called() -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for source in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text: String = fs::read_to_string(source).unwrap().split_whitespace().collect();
            let names = text.split("AwsError::new(\"").skip(1).filter_map(|rest| rest.split_once('"'));
            all.extend(names.map(|(name, _)| name.to_owned()));
        }
        all
    }

    #[test]
    fn every_operation_that_is_called_is_in_the_policy_and_no_other() {
        let listed: BTreeSet<String> = CALLS.iter().map(|call| call.0.to_owned()).collect();
        assert_eq!(called(), listed);
    }
}
