//! A pool on moto with everything that it needs, and stand-ins for the agents on its runners.

use std::time::Duration;

use aws::{Announcement, Class, Clock, Holder, Runner, RunnerPool, RunnerState, Settings};
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use domain::{Attributes, Requirements, UsageClass};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::moto;

const PATIENCE: Duration = Duration::from_secs(20);

/// A pool that only one test uses, and the clock of all its processes.
pub struct World {
    pub settings: Settings,
    pub clock: Clock,
    sdk: SdkConfig,
}

pub fn large() -> Class {
    moto::class("large", 1, &["c6i.large"], 10, 10)
}

pub fn xlarge() -> Class {
    moto::class("xlarge", 2, &["c6i.xlarge"], 10, 0)
}

impl World {
    /// Only the table and the queues. Runners are written without machines.
    pub async fn new(classes: Vec<Class>) -> Self {
        Self::with(moto::settings(classes), false).await
    }

    /// With groups, so that there are machines.
    pub async fn with_groups(classes: Vec<Class>) -> Self {
        Self::with(moto::settings(classes), true).await
    }

    pub async fn with(mut settings: Settings, groups: bool) -> Self {
        // Machines that run tests may be slow.
        settings.pace.healthy = settings.pace.healthy.max(Duration::from_secs(15));
        if groups {
            moto::make(&settings).await;
        } else {
            aws::init(&settings).await.unwrap();
        }
        let loader = aws_config::defaults(BehaviorVersion::latest()).region(Region::new(moto::REGION));
        let sdk = loader.endpoint_url(moto::endpoint()).load().await;
        Self { settings, clock: Clock::default(), sdk }
    }

    /// A process. Two processes share only AWS.
    pub async fn pool(&self) -> RunnerPool {
        RunnerPool::with_clock(self.settings.clone(), self.clock.clone()).await
    }

    pub fn attributes(&self, class: &str, usage_class: UsageClass) -> Attributes {
        self.settings.class(class).unwrap().offers(usage_class).next().unwrap()
    }

    /// Writes idle on-demand runners of the class, announced and with a fresh heartbeat.
    pub async fn idle(&self, pool: &RunnerPool, class: &str, names: &[&str]) {
        let attributes = self.attributes(class, UsageClass::OnDemand);
        let runners: Vec<_> = names.iter().map(|name| ((*name).to_owned(), attributes.clone())).collect();
        pool.fill(&runners).await.unwrap();
    }

    /// Requests machines of a group, which start at once at moto.
    pub async fn machines(&self, class: &str, usage_class: UsageClass, number: i32) -> Vec<String> {
        let client = aws_sdk_autoscaling::Client::new(&self.sdk);
        let group = self.settings.group(class, usage_class);
        let call = client.set_desired_capacity().auto_scaling_group_name(&group);
        call.desired_capacity(number).send().await.unwrap();
        self.listed(class, usage_class).await
    }

    /// The machines of a group.
    pub async fn listed(&self, class: &str, usage_class: UsageClass) -> Vec<String> {
        let group = self.described(class, usage_class).await;
        group.instances().iter().map(|instance| instance.instance_id().unwrap().to_owned()).collect()
    }

    pub async fn desired(&self, class: &str, usage_class: UsageClass) -> i32 {
        self.described(class, usage_class).await.desired_capacity().unwrap()
    }

    /// The instance types that a group starts.
    pub async fn types_of(&self, group: &str) -> Vec<String> {
        let group = self.described_group(group).await;
        let template = group.mixed_instances_policy().unwrap().launch_template().unwrap();
        template.overrides().iter().map(|one| one.instance_type().unwrap().to_owned()).collect()
    }

    async fn described(&self, class: &str, usage_class: UsageClass) -> aws_sdk_autoscaling::types::AutoScalingGroup {
        self.described_group(&self.settings.group(class, usage_class)).await
    }

    async fn described_group(&self, group: &str) -> aws_sdk_autoscaling::types::AutoScalingGroup {
        let client = aws_sdk_autoscaling::Client::new(&self.sdk);
        let answer = client.describe_auto_scaling_groups().auto_scaling_group_names(group).send().await.unwrap();
        answer.auto_scaling_groups.unwrap().pop().unwrap()
    }

    /// Ends a machine as AWS does with spot machines: only its group notices.
    pub async fn take_away(&self, instance: &str) {
        let client = aws_sdk_autoscaling::Client::new(&self.sdk);
        let call = client.terminate_instance_in_auto_scaling_group().instance_id(instance);
        call.should_decrement_desired_capacity(true).send().await.unwrap();
    }

    /// Writes what a process writes that dies before it has ended the machine.
    pub async fn terminate_in_table(&self, instance: &str) {
        let client = aws_sdk_dynamodb::Client::new(&self.sdk);
        let call = client.update_item().table_name(&self.settings.table);
        let call = call.key("id", AttributeValue::S(format!("runner#{instance}")));
        let call = call.update_expression("SET #state = :state").expression_attribute_names("#state", "state");
        let call = call.expression_attribute_values(":state", AttributeValue::S("terminated".into()));
        call.send().await.unwrap();
    }

    async fn queue(&self, class: &str) -> (aws_sdk_sqs::Client, String) {
        let client = aws_sdk_sqs::Client::new(&self.sdk);
        let url = client.get_queue_url().queue_name(self.settings.queue(class)).send().await.unwrap();
        (client, url.queue_url.unwrap())
    }

    /// Sends a text to the queue of a class.
    pub async fn send(&self, class: &str, body: &str) {
        let (client, url) = self.queue(class).await;
        client.send_message().queue_url(url).message_body(body).send().await.unwrap();
    }

    /// How many messages a queue has, including delayed and received ones.
    pub async fn messages(&self, class: &str) -> usize {
        let mut all = 0;
        for name in [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        ] {
            all += self.queue_number(class, name).await;
        }
        all
    }

    pub async fn delayed(&self, class: &str) -> usize {
        self.queue_number(class, QueueAttributeName::ApproximateNumberOfMessagesDelayed).await
    }

    async fn queue_number(&self, class: &str, name: QueueAttributeName) -> usize {
        let (client, url) = self.queue(class).await;
        let answer = client.get_queue_attributes().queue_url(url).attribute_names(name.clone()).send().await.unwrap();
        answer.attributes.unwrap()[&name].parse().unwrap()
    }

    /// The next message of a queue, and for how many milliseconds it could not be received.
    pub async fn receive(&self, class: &str) -> (String, i64) {
        let (client, url) = self.queue(class).await;
        let receive = async || {
            let call = client.receive_message().queue_url(&url);
            let answer = call.message_system_attribute_names(MessageSystemAttributeName::All).send().await.unwrap();
            answer.messages.unwrap_or_default().pop()
        };
        let message = eventually("a message", async || receive().await).await;
        let attributes = message.attributes.unwrap();
        let number = |name: MessageSystemAttributeName| attributes[&name].parse::<i64>().unwrap();
        let sent = number(MessageSystemAttributeName::SentTimestamp);
        (message.body.unwrap(), number(MessageSystemAttributeName::ApproximateFirstReceiveTimestamp) - sent)
    }

    pub fn announcement(&self, instance: &str, attributes: &Attributes, good_for: Duration) -> Announcement {
        let expires_at = self.clock.now().as_millisecond() + i64::try_from(good_for.as_millis()).unwrap();
        Announcement::new(instance, attributes, Timestamp::from_millisecond(expires_at).unwrap())
    }
}

pub fn holder(slot: &str) -> Holder {
    Holder { slot: slot.to_owned(), connection: Some(format!("connection-of-{slot}")) }
}

pub fn spot() -> Requirements {
    Requirements { usage_class: UsageClass::Spot, ..Requirements::default() }
}

pub fn on_demand() -> Requirements {
    Requirements::default()
}

/// Stands in for the agent of a runner: sends heartbeats, acknowledges claims, and releases the runner when asked.
pub fn agent(pool: &RunnerPool, instance: &str) -> JoinHandle<()> {
    let (pool, instance) = (pool.clone(), instance.to_owned());
    tokio::spawn(async move {
        loop {
            let reply = pool.beat(&instance, None).await.unwrap();
            if reply.end {
                return;
            }
            let Some(run) = pool.await_claim(&instance, Duration::from_secs(1)).await.unwrap() else { continue };
            if !pool.acknowledge(&instance, &run.run_id).await.unwrap() {
                continue;
            }
            while !pool.beat(&instance, Some(&run.run_id)).await.unwrap().stop {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            pool.release(&instance, &run.run_id).await.unwrap();
        }
    })
}

/// Waits until `probe` returns a value.
pub async fn eventually<T>(what: &str, probe: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout: there was never {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a call has stopped at its step.
pub async fn stands(pool: &RunnerPool) {
    eventually("a call that has stopped at its step", async || (pool.paused() > 0).then_some(())).await;
}

pub async fn runner(pool: &RunnerPool, instance: &str) -> Runner {
    pool.runner(instance).await.unwrap().unwrap_or_else(|| panic!("there is no {instance}"))
}

pub async fn state(pool: &RunnerPool, instance: &str) -> RunnerState {
    runner(pool, instance).await.state
}
