//! Fresh capacity. A slot that finds no runner records its demand in the table, and the group of the smallest fitting
//! class grows by the missing number of machines. Each waiting slot and each machine that is starting counts once, so a
//! group never grows by more than that. A bot that allows only some types of a class gets a machine from a group of one
//! of these types.

use std::collections::HashSet;
use std::time::Duration;

use domain::{Requirements, UsageClass, requirements};

use crate::clock::before;
use crate::groups::Group;
use crate::table::Demand;
use crate::{AwsError, Runner, RunnerPool, RunnerState};

/// A slot that has not asked again within this time no longer waits.
const STILL_WAITS: Duration = Duration::from_secs(30);
/// A group whose machines do not start within this time counts as full: AWS has no capacity, or does not give it to
/// this account.
const LAUNCHES_WITHIN: Duration = Duration::from_mins(5);

/// The result of a request for a fresh runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// A machine is starting in this group. The caller must ask again within 30 seconds to keep its demand. `asked` is
    /// true if the group grew now; otherwise a machine that was requested earlier is enough.
    Coming { group: String, asked: bool },
    /// Every group that fits is at its maximum.
    NoCapacity { message: String },
    /// No group can ever have a runner that fits.
    Impossible { message: String },
}

/// A group whose machines all fit a request.
struct FittingGroup {
    name: String,
    /// The maximum number of machines in all groups of this class and usage class.
    most: u32,
    of_class: Vec<String>,
}

impl FittingGroup {
    /// The maximum size of this group, given the sizes of the other groups of its class.
    fn max_size(&self, groups: &[Group]) -> u32 {
        let others = groups.iter().filter(|group| group.name != self.name && self.of_class.contains(&group.name));
        self.most.saturating_sub(others.map(|group| group.desired).sum())
    }
}

/// The counts of a group for one request.
struct Counted<'a> {
    group: &'a Group,
    max: u32,
    /// Registered runners that the request cannot use.
    others: u32,
    /// Idle runners that fit, and machines that are starting.
    coming: u32,
    waiting: u32,
    /// How many slots have waited longer.
    before_it: u32,
}

impl Counted<'_> {
    fn has_room(&self) -> bool {
        self.others.saturating_add(self.before_it) < self.max
    }

    fn target(&self) -> u32 {
        self.others.saturating_add(self.coming.max(self.waiting)).min(self.max)
    }
}

impl RunnerPool {
    /// Records that a slot waits for a fresh runner, and grows a group if too few machines are starting.
    pub async fn ask_for_fresh(&self, wanted: Option<&Requirements>, slot: &str) -> Result<Fresh, AwsError> {
        if self.classes_for(wanted).is_empty() {
            return Ok(Fresh::Impossible { message: "no class of the pool meets the requirements".into() });
        }
        let could = self.groups_for(wanted);
        let (groups, registered) = tokio::join!(self.0.groups.all(), self.registered_runners());
        let (groups, registered) = (groups?, registered?);
        let is_there = |name: &String| groups.iter().find(|group| group.name == *name);
        let mut there: Vec<_> =
            could.iter().filter_map(|one| Some((is_there(&one.name)?, one.max_size(&groups)))).collect();
        if there.is_empty() {
            let names: Vec<_> = could.iter().map(|one| one.name.as_str()).collect();
            let message = format!("none of the groups {} exists; `greenroom aws init` makes them", names.join(", "));
            return Ok(Fresh::Impossible { message });
        }
        let (key, now) = (self.slot_key(slot), self.now());
        let waits = |demand: &Demand| demand.at >= before(now, STILL_WAITS);
        let own = self.0.table.demand(&key).await?.filter(waits);
        if let Some(own) = &own {
            // The slot keeps its group for as long as that group has room.
            there.sort_by_key(|(group, _)| group.name != own.group);
        }
        let mut at_maximum = Vec::new();
        for (group, most) in there {
            let first = own.as_ref().filter(|own| own.group == group.name).map_or(now, |own| own.first);
            let demand = Demand { slot: key.clone(), group: group.name.clone(), at: now, first };
            let mut others = self.0.table.demands(&group.name).await?;
            others.retain(|other| waits(other) && other.slot != key);
            let counted = self.count(group, most, wanted, &registered, &others, &demand);
            let waits_in_vain = group.desired > count(group.instances.len()) && first < before(now, LAUNCHES_WITHIN);
            if waits_in_vain {
                at_maximum.push(format!("{} (no machine started in time)", group.name));
                continue;
            }
            if !counted.has_room() {
                at_maximum.push(format!("{} (its maximum is {})", group.name, counted.max));
                continue;
            }
            self.0.table.put_demand(&demand).await?;
            let asked = self.grow_to(counted.group, counted.target()).await?;
            return Ok(Fresh::Coming { group: group.name.clone(), asked });
        }
        self.0.table.forget_demand(&key).await?;
        Ok(Fresh::NoCapacity {
            message: format!("no group that fits can start another machine: {}", at_maximum.join(", ")),
        })
    }

    /// Removes the slot's demand for a fresh runner.
    pub async fn forget_demand(&self, slot: &str) -> Result<(), AwsError> {
        self.0.table.forget_demand(&self.slot_key(slot)).await
    }

    /// The groups whose machines all fit: smallest class first, and on-demand before spot within a class. The groups of
    /// a single type are used only if some types of the class do not fit. The group of all types would then start
    /// unusable machines again and again.
    fn groups_for(&self, wanted: Option<&Requirements>) -> Vec<FittingGroup> {
        let settings = &self.0.settings;
        let mut fitting = Vec::new();
        for class in &settings.classes {
            for usage in class.could_fit(wanted) {
                let groups = settings.groups_of(class, usage);
                let of_class: Vec<String> = groups.iter().map(|(name, _)| name.clone()).collect();
                // The first group has all types. If all types fit, it is enough.
                let all_fit = class.always_fits(wanted, usage, &groups[0].1);
                let groups = groups.into_iter().filter(|(_, types)| class.always_fits(wanted, usage, types));
                let groups = groups.take(if all_fit { 1 } else { usize::MAX });
                let group = |(name, _)| FittingGroup { name, most: class.most(usage), of_class: of_class.clone() };
                fitting.extend(groups.map(group));
            }
        }
        fitting
    }

    /// The registered runners: idle, claimed and running.
    async fn registered_runners(&self) -> Result<Vec<Runner>, AwsError> {
        let of = |state| self.0.table.runners(state);
        let (mut registered, claimed, running) =
            tokio::try_join!(of(RunnerState::Idle), of(RunnerState::Claimed), of(RunnerState::Running))?;
        registered.extend(claimed);
        registered.extend(running);
        Ok(registered)
    }

    fn count<'a>(
        &self,
        group: &'a Group,
        most: u32,
        wanted: Option<&Requirements>,
        registered: &[Runner],
        others: &[Demand],
        own: &Demand,
    ) -> Counted<'a> {
        let now = self.now();
        // Counts each runner once, and only if its machine still exists. Rows of ended machines disappear later.
        let is_there =
            |runner: &&Runner| group.instances.iter().any(|machine| machine.id == runner.instance && !machine.going);
        let mut of_group: Vec<_> =
            registered.iter().filter(|runner| runner.group == group.name).filter(is_there).collect();
        of_group.sort_by_key(|runner| &runner.instance);
        of_group.dedup_by_key(|runner| &runner.instance);
        let will_do = |runner: &&&Runner| {
            let is_offered = runner.state == RunnerState::Idle && runner.expires_at > now;
            is_offered && requirements::fits(wanted, &runner.attributes)
        };
        let idle = of_group.iter().filter(will_do).count();
        let earlier = |other: &&Demand| (other.first, &other.slot) < (own.first, &own.slot);
        Counted {
            group,
            max: most.min(group.max),
            others: count(of_group.len() - idle),
            coming: count(idle).saturating_add(starting_machines(group, of_group.iter().copied())),
            waiting: count(others.len() + 1),
            before_it: count(others.iter().filter(earlier).count()),
        }
    }

    /// Grows a group. Never shrinks it.
    async fn grow_to(&self, group: &Group, target: u32) -> Result<bool, AwsError> {
        if target <= group.desired {
            return Ok(false);
        }
        tracing::info!(group = group.name, from = group.desired, to = target, "group size raised");
        self.0.groups.grow(&group.name, target).await?;
        Ok(true)
    }

    /// Keeps the configured number of idle on-demand runners for each class. Returns how many groups grew.
    pub(crate) async fn keep_idle(&self, groups: &[Group], registered: &[&Runner]) -> Result<u32, AwsError> {
        let mut grown = 0;
        for class in self.0.settings.classes.iter().filter(|class| class.min_idle > 0) {
            let name = self.0.settings.group(&class.name, UsageClass::OnDemand);
            let Some(group) = groups.iter().find(|group| group.name == name) else { continue };
            let of_group = || registered.iter().filter(|runner| runner.group == name).copied();
            let idle = count(of_group().filter(|runner| runner.state == RunnerState::Idle).count());
            if idle.saturating_add(starting_machines(group, of_group())) >= class.min_idle {
                continue;
            }
            let busy = count(of_group().count()).saturating_sub(idle);
            let target = busy.saturating_add(class.min_idle).min(class.max).min(group.max);
            grown += u32::from(self.grow_to(group, target).await?);
        }
        Ok(grown)
    }
}

/// How many machines of a group are starting: present but not registered, or requested and not present.
fn starting_machines<'a>(group: &Group, registered: impl Iterator<Item = &'a Runner>) -> u32 {
    let registered: HashSet<_> = registered.map(|runner| runner.instance.as_str()).collect();
    let staying: Vec<_> = group.instances.iter().filter(|instance| !instance.going).collect();
    let missing = group.desired.saturating_sub(count(staying.len()));
    missing + count(staying.iter().filter(|instance| !registered.contains(instance.id.as_str())).count())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
