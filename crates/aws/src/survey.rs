//! Reports which resources of a pool exist, for an operator who inspects it. It changes nothing.

use domain::UsageClass;

use crate::{AwsError, RunnerPool};

/// The existing and the missing resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub queues: Vec<String>,
    pub missing_queues: Vec<String>,
    pub groups: Vec<SurveyedGroup>,
    pub missing_groups: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedGroup {
    pub name: String,
    /// How many machines it has that are not ending.
    pub machines: usize,
    pub max: u32,
    /// The maximum in the settings.
    pub wanted_max: u32,
}

impl RunnerPool {
    /// Looks up every queue and every group that the settings name.
    pub async fn survey(&self) -> Result<Survey, AwsError> {
        let mut survey = Survey::default();
        let there = self.0.groups.all().await?;
        for class in &self.0.settings.classes {
            if let Some(queue) = self.0.queues.get(&class.name) {
                match queue.url().await {
                    Ok(_) => survey.queues.push(queue.name.clone()),
                    Err(AwsError::Missing { .. }) => survey.missing_queues.push(queue.name.clone()),
                    Err(error) => return Err(error),
                }
            }
            for usage_class in UsageClass::ALL.into_iter().filter(|usage_class| class.most(*usage_class) > 0) {
                let name = self.0.settings.group(&class.name, usage_class);
                match there.iter().find(|group| group.name == name) {
                    Some(group) => survey.groups.push(SurveyedGroup {
                        machines: group.instances.iter().filter(|machine| !machine.going).count(),
                        max: group.max,
                        wanted_max: class.most(usage_class),
                        name,
                    }),
                    None => survey.missing_groups.push(name),
                }
            }
        }
        Ok(survey)
    }
}
