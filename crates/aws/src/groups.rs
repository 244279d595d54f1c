//! The Auto Scaling groups that start runners, at least one for each class and usage class. Every call is limited to
//! the groups of this pool: this module never describes, grows or ends anything of another pool.

use std::sync::Arc;

use aws_sdk_autoscaling::Client;
use aws_sdk_autoscaling::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_autoscaling::operation::terminate_instance_in_auto_scaling_group::TerminateInstanceInAutoScalingGroupError;
use aws_sdk_autoscaling::types::{AutoScalingGroup, LifecycleState};
use domain::UsageClass;

use crate::{AwsError, Settings};

/// AWS accepts this many names in one request.
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
    /// The machine is ending, has ended, or has left its group.
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

    /// Every existing group of the pool, with its machines.
    pub async fn all(&self) -> Result<Vec<Group>, AwsError> {
        let described = describe(&self.client, &names(&self.settings)).await?;
        Ok(described.iter().filter_map(Group::read).collect())
    }

    /// Finds a machine by its id, if it is in one of the groups.
    pub async fn find(&self, instance: &str) -> Result<Option<Instance>, AwsError> {
        self.find_in(instance, None).await
    }

    /// Like `find`. Also accepts the group `of`, which may have been a group of the pool earlier.
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

    /// Sets the desired size of a group. Ignores the cooldown, which is for groups that follow a metric.
    pub async fn grow(&self, group: &str, desired: u32) -> Result<(), AwsError> {
        let call = self.client.set_desired_capacity().auto_scaling_group_name(group);
        let call = call.desired_capacity(size(desired)).honor_cooldown(false);
        call.send().await.map_err(|error| AwsError::new("SetDesiredCapacity", error))?;
        Ok(())
    }

    /// Ends a machine and reduces the desired size of its group by one. Does nothing if the machine is already ending,
    /// or is neither in the pool's groups nor in `of`.
    pub async fn terminate(&self, instance: &str, of: Option<&str>) -> Result<(), AwsError> {
        if self.is_settled(instance, of).await? {
            return Ok(());
        }
        let mut ended = self.end(instance, true).await;
        if ended.as_ref().is_err_and(would_pass_minimum) {
            // An operator reduced the group by hand, and its machines are protected from scale-in. The group has more
            // machines than its desired size, so it does not replace this one.
            ended = self.end(instance, false).await;
        }
        let Err(error) = ended else { return Ok(()) };
        // Another process may have ended the machine first.
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

/// Describes groups. The answer omits groups that do not exist.
pub(crate) async fn describe(client: &Client, names: &[String]) -> Result<Vec<AutoScalingGroup>, AwsError> {
    let mut all = Vec::new();
    // A request without names would describe every group of the account.
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

/// Auto Scaling uses signed numbers for sizes.
pub(crate) fn size(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn is_going(state: &str) -> bool {
    // This also matches `Terminating:Wait`, `Warmed:Terminated`, and similar states that AWS may add.
    state.contains("Terminat") || state.starts_with("Detach")
}

/// Whether AWS refused because a smaller desired size would be below the group's minimum.
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
