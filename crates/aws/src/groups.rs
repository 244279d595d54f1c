//! The Auto Scaling groups that runners come from, one for each class and usage class. Every call is held to the groups of
//! this pool: what belongs to another one is never described, grown or ended here.

use std::sync::Arc;

use aws_sdk_autoscaling::Client;
use aws_sdk_autoscaling::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_autoscaling::operation::terminate_instance_in_auto_scaling_group::TerminateInstanceInAutoScalingGroupError;
use aws_sdk_autoscaling::types::{AutoScalingGroup, LifecycleState};
use domain::UsageClass;

use crate::{AwsError, Settings};

/// So many names fit into one question.
const NAMES_AT_ONCE: usize = 50;

#[derive(Clone, Debug)]
pub(crate) struct Groups {
    client: Client,
    settings: Arc<Settings>,
}

/// A machine of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub id: String,
    pub group: String,
    pub instance_type: String,
    /// It is being ended, is ended, or has left its group.
    pub going: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub name: String,
    pub desired: u32,
    pub max: u32,
    pub instances: Vec<Instance>,
}

impl Groups {
    pub fn new(client: Client, settings: Arc<Settings>) -> Self {
        Self { client, settings }
    }

    /// Every group of the pool that there is, with its machines.
    pub async fn all(&self) -> Result<Vec<Group>, AwsError> {
        let described = describe(&self.client, &names(&self.settings)).await?;
        Ok(described.iter().filter_map(Group::read).collect())
    }

    /// A machine by its id, if it is in one of the groups.
    pub async fn find(&self, instance: &str) -> Result<Option<Instance>, AwsError> {
        self.find_in(instance, None).await
    }

    /// The same, also if it is in a group that was ours once.
    async fn find_in(&self, instance: &str, of: Option<&str>) -> Result<Option<Instance>, AwsError> {
        let asked = self.client.describe_auto_scaling_instances().instance_ids(instance).send().await;
        let answer = asked.map_err(|error| AwsError::new("DescribeAutoScalingInstances", error))?;
        let found = answer.auto_scaling_instances().iter().find(|found| found.instance_id() == Some(instance));
        let Some(found) = found else { return Ok(None) };
        let group = found.auto_scaling_group_name().unwrap_or_default();
        if self.settings.class_of_group(group).is_none() && of != Some(group) {
            return Ok(None);
        }
        Ok(Some(Instance {
            id: instance.to_owned(),
            group: group.to_owned(),
            instance_type: found.instance_type().unwrap_or_default().to_owned(),
            going: found.lifecycle_state().is_some_and(is_going),
        }))
    }

    /// Asks for a group of this size. At once: a pause after the last change is for groups that follow a measurement.
    pub async fn grow(&self, group: &str, desired: u32) -> Result<(), AwsError> {
        let call = self.client.set_desired_capacity().auto_scaling_group_name(group);
        let call = call.desired_capacity(size(desired)).honor_cooldown(false);
        call.send().await.map_err(|error| AwsError::new("SetDesiredCapacity", error))?;
        Ok(())
    }

    /// Ends a machine and makes its group smaller by it. One that is in none of the groups, nor in that of which it is known to
    /// be, or is going, is left alone.
    pub async fn terminate(&self, instance: &str, of: Option<&str>) -> Result<(), AwsError> {
        if self.is_settled(instance, of).await? {
            return Ok(());
        }
        let mut ended = self.end(instance, true).await;
        if ended.as_ref().is_err_and(would_pass_minimum) {
            // Somebody made the group smaller by hand, and its machines are protected from that: it has more than it
            // wants, so that none comes in place of this one.
            ended = self.end(instance, false).await;
        }
        let Err(error) = ended else { return Ok(()) };
        // Another process may have been faster.
        match self.is_settled(instance, of).await {
            Ok(true) => Ok(()),
            _ => Err(AwsError::new("TerminateInstanceInAutoScalingGroup", error)),
        }
    }

    async fn end(
        &self,
        instance: &str,
        smaller: bool,
    ) -> Result<(), SdkError<TerminateInstanceInAutoScalingGroupError>> {
        let call = self.client.terminate_instance_in_auto_scaling_group().instance_id(instance);
        call.should_decrement_desired_capacity(smaller).send().await.map(|_| ())
    }

    async fn is_settled(&self, instance: &str, of: Option<&str>) -> Result<bool, AwsError> {
        Ok(self.find_in(instance, of).await?.is_none_or(|found| found.going))
    }
}

impl Group {
    fn read(described: &AutoScalingGroup) -> Option<Self> {
        let name = described.auto_scaling_group_name()?.to_owned();
        let instances = described.instances().iter().filter_map(|instance| {
            Some(Instance {
                id: instance.instance_id()?.to_owned(),
                group: name.clone(),
                instance_type: instance.instance_type().unwrap_or_default().to_owned(),
                going: instance.lifecycle_state().map(LifecycleState::as_str).is_some_and(is_going),
            })
        });
        Some(Self {
            desired: described.desired_capacity().unwrap_or_default().max(0).unsigned_abs(),
            max: described.max_size().unwrap_or_default().max(0).unsigned_abs(),
            instances: instances.collect(),
            name: name.clone(),
        })
    }
}

/// The names of all groups that the pool may have.
pub(crate) fn names(settings: &Settings) -> Vec<String> {
    let all = settings.classes.iter().flat_map(|class| UsageClass::ALL.map(|usage| settings.groups_of(class, usage)));
    all.flatten().map(|(name, _)| name).collect()
}

/// What Auto Scaling says of groups. Those that are missing are not in the answer.
pub(crate) async fn describe(client: &Client, names: &[String]) -> Result<Vec<AutoScalingGroup>, AwsError> {
    let mut all = Vec::new();
    // Without a name the question would be about every group of the account.
    for names in names.chunks(NAMES_AT_ONCE) {
        let question = client.describe_auto_scaling_groups().set_auto_scaling_group_names(Some(names.to_vec()));
        let mut pages = question.max_records(100).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| AwsError::new("DescribeAutoScalingGroups", error))?;
            all.extend(page.auto_scaling_groups.unwrap_or_default());
        }
    }
    Ok(all)
}

/// Sizes are signed numbers at Auto Scaling.
pub(crate) fn size(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn is_going(state: &str) -> bool {
    // Also `Terminating:Wait`, `Warmed:Terminated` and whatever else there may come to be of it.
    state.contains("Terminat") || state.starts_with("Detach")
}

/// Whether a machine cannot be ended together with its place, as the group would become too small.
fn would_pass_minimum(error: &SdkError<TerminateInstanceInAutoScalingGroupError>) -> bool {
    error.code() == Some("ValidationError") && error.message().is_some_and(|message| message.contains("min size"))
}

#[cfg(test)]
mod on_moto;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_going_in_every_state_from_which_it_does_not_come_back() {
        for state in ["Terminating", "Terminating:Wait", "Terminating:Proceed", "Terminated", "Detaching", "Detached"] {
            assert!(is_going(state), "{state}");
        }
        for state in ["Pending", "Pending:Wait", "InService", "Standby", "EnteringStandby", "Quarantined"] {
            assert!(!is_going(state), "{state}");
        }
    }
}
