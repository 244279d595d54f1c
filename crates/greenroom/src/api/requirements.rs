//! What a bot asks of its slot, as it is written in a request.

use domain::requirements::{MOST, Patterns, is_class_name};
use domain::{Requirements, UsageClass};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::problem::Problem;

/// The requirements of a bot for its slot. A slot must meet all of them.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Requirements)]
pub struct RequirementsBody {
    /// The resource class of the slot, for example `large`. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_class: Option<String>,
    /// The usage class of the slot. Default `on-demand`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UsageClassWord>)]
    pub usage_class: Option<String>,
    /// Patterns separated by spaces; the instance type must match one of them. `*` matches any text. Default `c* m*
    /// r*`; a slot whose instance type is unknown then fits too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "c* m5.large")]
    pub allowed_instance_types: Option<String>,
    /// The smallest number of processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000000000)]
    pub cpu: Option<i64>,
    /// The smallest amount of memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1000000000)]
    pub mem: Option<i64>,
}

/// How the provider charges for a machine.
#[derive(Debug, ToSchema)]
#[schema(as = UsageClass, rename_all = "kebab-case")]
#[allow(dead_code)]
pub enum UsageClassWord {
    OnDemand,
    Spot,
}

impl RequirementsBody {
    /// As they are kept, and as they are read.
    pub fn read(self) -> Result<(Map<String, Value>, Requirements), Problem> {
        if let Some(class) = self.resource_class.as_deref().filter(|class| !is_class_name(class)) {
            return Err(invalid("resource_class", format!("is `{class}`, which is not a class name such as large")));
        }
        let usage_class = self.usage_class.as_deref().map(str::parse::<UsageClass>).transpose();
        let usage_class = usage_class.map_err(|error| invalid("usage_class", error))?;
        let types = self.allowed_instance_types.clone().map(Patterns::try_from).transpose();
        let types = types.map_err(|error| invalid("allowed_instance_types", error))?;
        let wanted = Requirements {
            resource_class: self.resource_class.clone(),
            usage_class: usage_class.unwrap_or_default(),
            allowed_instance_types: types,
            cpu: minimum("cpu", self.cpu)?,
            mem: minimum("mem", self.mem)?,
        };
        let asked = match serde_json::to_value(&self) {
            Ok(Value::Object(asked)) => asked,
            _ => Map::new(),
        };
        Ok((asked, wanted))
    }
}

fn minimum(field: &str, value: Option<i64>) -> Result<Option<u32>, Problem> {
    let fits = |value: i64| u32::try_from(value).ok().filter(|value| *value <= MOST);
    let wrong = || invalid(field, format!("must be from 0 to {MOST}"));
    value.map(|value| fits(value).ok_or_else(wrong)).transpose()
}

fn invalid(field: &str, why: impl std::fmt::Display) -> Problem {
    Problem::invalid(&format!("requirements.{field}"), why)
}
