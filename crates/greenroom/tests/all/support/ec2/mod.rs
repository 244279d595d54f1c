//! Pools of runners on moto, which stands in for AWS. Each test has its own queues, table and groups, and plays the
//! agents of the machines.

mod machine;
#[path = "../../../../../aws/tests/all/moto.rs"]
mod moto;

use std::process::Output;

use aws_sdk_autoscaling::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::QueueAttributeName;

use super::{Database, Process, found};

pub use machine::Machine;

/// Queues, a table and groups that only one test has.
#[derive(Debug)]
pub struct Cloud {
    prefix: String,
    /// The launch template of its groups. With `None`, the groups already exist.
    template: Option<String>,
    groups: aws_sdk_autoscaling::Client,
    queues: aws_sdk_sqs::Client,
}

impl Cloud {
    pub async fn new() -> Self {
        let prefix = moto::prefix();
        let template = moto::launch_template(&format!("{prefix}template"), "c6i.large").await;
        let (region, credentials) = (Region::new(moto::REGION), Credentials::new("moto", "moto", None, None, "tests"));
        let groups = aws_sdk_autoscaling::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(region.clone())
            .credentials_provider(credentials.clone())
            .endpoint_url(moto::endpoint())
            .build();
        let queues = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(region)
            .credentials_provider(credentials)
            .endpoint_url(moto::endpoint())
            .build();
        let groups = aws_sdk_autoscaling::Client::from_conf(groups);
        Self { prefix, template: Some(template), groups, queues: aws_sdk_sqs::Client::from_conf(queues) }
    }

    /// Creates everything that a pool of these classes needs. The machines have the first instance type of their class.
    pub async fn of_classes(classes: Vec<aws::Class>) -> Self {
        let settings = moto::settings(classes);
        moto::make(&settings).await;
        Self { prefix: settings.queue_prefix, template: None, ..Self::new().await }
    }

    /// All runners that have not ended.
    pub async fn runners(&self, classes: Vec<aws::Class>) -> Vec<aws::Runner> {
        let settings = aws::Settings {
            queue_prefix: self.prefix.clone(),
            table: format!("{}runners", self.prefix),
            ..moto::settings(classes)
        };
        aws::RunnerPool::connect(settings).await.runners().await.unwrap()
    }

    /// The configuration of a pool with runners in this cloud. `settings` has the lines of the pool, then an empty
    /// line, then the lines of its `ec2` section.
    pub fn pool(&self, name: &str, settings: &str) -> String {
        let (of_pool, of_ec2) = settings.split_once("\n\n").unwrap_or((settings, ""));
        let template = self.template.iter().map(|id| format!("launch_template = \"{id}\"\n")).collect::<String>();
        format!(
            "[[pool]]\nname = \"{name}\"\nplatform = \"google_meet\"\nprovider = \"ec2\"\n{of_pool}\n\
             [pool.ec2]\nregion = \"{}\"\nendpoint = \"{}\"\nqueue_prefix = \"{prefix}\"\ntable = \"{prefix}runners\"\n\
             {template}zones = [\"{}\"]\n{of_ec2}\n",
            moto::REGION,
            moto::endpoint(),
            moto::ZONE,
            prefix = self.prefix,
        )
    }

    pub fn group(&self, of: &str) -> String {
        format!("{}{of}", self.prefix)
    }

    /// How many messages wait in the queue of a class.
    pub async fn queued(&self, class: &str) -> usize {
        let url = self.queues.get_queue_url().queue_name(self.group(class)).send().await.unwrap().queue_url.unwrap();
        let counted = QueueAttributeName::ApproximateNumberOfMessages;
        let call = self.queues.get_queue_attributes().queue_url(url).attribute_names(counted.clone());
        let found = call.send().await.unwrap().attributes.unwrap_or_default();
        found[&counted].parse().unwrap()
    }

    /// Sets the size of a group, and returns the ids of its machines.
    pub async fn grow(&self, of: &str, size: i32) -> Vec<String> {
        let call = self.groups.set_desired_capacity().auto_scaling_group_name(self.group(of)).desired_capacity(size);
        call.send().await.unwrap();
        self.machines(of).await
    }

    /// The ids of the machines in a group.
    pub async fn machines(&self, of: &str) -> Vec<String> {
        let call = self.groups.describe_auto_scaling_groups().auto_scaling_group_names(self.group(of));
        let groups = call.send().await.unwrap().auto_scaling_groups.unwrap_or_default();
        let instances = groups.into_iter().flat_map(|group| group.instances.unwrap_or_default());
        instances.filter_map(|instance| instance.instance_id).collect()
    }

    /// Waits until a group has machines.
    pub async fn grown(&self, of: &str) -> Vec<String> {
        found("the group has grown", async || Some(self.machines(of).await).filter(|found| !found.is_empty())).await
    }
}

/// Runs the binary on the database of a server.
pub async fn greenroom(database: &Database, arguments: &[&str]) -> (bool, String, String) {
    let mut command = Process::command();
    command.args(arguments).args(["--config", "greenroom.toml", "--database", &database.url]);
    let Output { status, stdout, stderr } = command.current_dir(database.folder.path()).output().await.unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}
