//! The DynamoDB table, which alone decides who has a runner. A runner changes only if its state, run and expiry are
//! still as they were read. The item of its slot changes in the same transaction.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{CancellationReason, Delete, KeysAndAttributes, Put, TransactWriteItem};
use domain::Backoff;
use jiff::Timestamp;

use crate::AwsError;
use crate::clock::{after, from_millis};
use crate::item::{
    Fields, Item, Runner, RunnerState, beat_key, demand_key, number, renewal_key, runner_key, slot_key, string,
};
use crate::message::text;
use crate::plan::INDEX;

/// How many items one request reads.
const AT_ONCE: usize = 100;
/// How often a change is tried again after a conflict with another change.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(640);
/// How long the table keeps the last heartbeat of a runner.
const BEAT_REMEMBERED: Duration = Duration::from_hours(24);
const DEMAND_REMEMBERED: Duration = Duration::from_mins(10);

/// Reasons for a cancelled transaction that can succeed a moment later.
const TRANSIENT: [&str; 3] = ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"];

/// The condition of every change: the runner is as it was read.
const AS_SEEN: &str = "#state = :state AND #run_id = :run_id AND #threshold = :threshold";

#[derive(Clone, Debug)]
pub(crate) struct Table {
    client: Client,
    name: String,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Done,
    /// The runner is no longer as it was read.
    Refused,
    /// The slot already has a runner.
    Taken,
}

/// The runner of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedRunner {
    pub runner: String,
    pub run_id: String,
}

/// A slot's demand for a fresh runner of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Includes the installation.
    pub slot: String,
    pub group: String,
    /// When the slot asked last, and when it asked first.
    pub at: Timestamp,
    pub first: Timestamp,
}

/// Why a write was refused without an error.
enum Refusal {
    Changed(Changed),
    /// Another change is in progress.
    Conflict,
}

impl Table {
    pub fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    pub async fn describe(&self) -> Result<(), AwsError> {
        let answer = self.client.describe_table().table_name(&self.name).send().await;
        answer.map(drop).map_err(|error| AwsError::new("DescribeTable", error))
    }

    async fn get(&self, key: &str) -> Result<Option<Item>, AwsError> {
        let call = self.client.get_item().table_name(&self.name).key("id", string(key)).consistent_read(true);
        let answer = call.send().await.map_err(|error| AwsError::new("GetItem", error))?;
        Ok(answer.item)
    }

    async fn put(&self, item: Item) -> Result<(), AwsError> {
        let call = self.client.put_item().table_name(&self.name).set_item(Some(item));
        call.send().await.map(drop).map_err(|error| AwsError::new("PutItem", error))
    }

    async fn delete(&self, key: &str) -> Result<(), AwsError> {
        let call = self.client.delete_item().table_name(&self.name).key("id", string(key));
        call.send().await.map(drop).map_err(|error| AwsError::new("DeleteItem", error))
    }

    /// The items that the index lists under a state. The index may lag, so every change that follows is conditional.
    async fn listed(&self, state: &str) -> Result<Vec<Item>, AwsError> {
        let query = self.client.query().table_name(&self.name).index_name(INDEX);
        let query = query.key_condition_expression("#state = :state").expression_attribute_names("#state", "state");
        let mut pages = query.expression_attribute_values(":state", string(state)).into_paginator().send();
        let mut all = Vec::new();
        while let Some(page) = pages.next().await {
            all.extend(page.map_err(|error| AwsError::new("Query", error))?.items.unwrap_or_default());
        }
        Ok(all)
    }

    pub async fn runner(&self, instance: &str) -> Result<Option<Runner>, AwsError> {
        self.get(&runner_key(instance)).await?.as_ref().map(Runner::read).transpose()
    }

    pub async fn runners(&self, state: RunnerState) -> Result<Vec<Runner>, AwsError> {
        let read = |item: &Item| match Runner::read(item) {
            Ok(runner) => Some(runner),
            Err(error) => {
                // Another program wrote this row. The other rows remain usable.
                tracing::warn!(%error, "table row skipped: not a runner");
                None
            }
        };
        Ok(self.listed(state.as_str()).await?.iter().filter_map(read).collect())
    }

    /// Inserts a new runner. Returns false if it already exists.
    pub async fn insert(&self, runner: &Runner) -> Result<bool, AwsError> {
        let call = self.client.put_item().table_name(&self.name).set_item(Some(runner.write()));
        match call.condition_expression("attribute_not_exists(id)").send().await {
            Ok(_) => Ok(true),
            Err(error) => match put_refused(&error) {
                Some(_) => Ok(false),
                None => Err(AwsError::new("PutItem", error)),
            },
        }
    }

    /// Replaces the runner `seen` with `next`, if it is unchanged.
    pub async fn change(&self, seen: &Runner, next: &Runner) -> Result<Changed, AwsError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for _ in 0..TRIES {
            let refusal = match (&seen.slot, &next.slot) {
                (None, Some(slot)) => self.change_with(seen, next, self.taking(next, slot)?).await?,
                (Some(slot), None) => self.change_with(seen, next, self.leaving(seen, slot)?).await?,
                _ => self.change_alone(seen, next).await?,
            };
            match refusal {
                None => return Ok(Changed::Done),
                Some(Refusal::Changed(Changed::Taken)) if next.slot.is_none() => {
                    // The slot has a newer run, whose item must stay.
                    let kept = Runner { slot: None, ..seen.clone() };
                    return match self.change_alone(&kept, next).await? {
                        None => Ok(Changed::Done),
                        Some(_) => Ok(Changed::Refused),
                    };
                }
                Some(Refusal::Changed(changed)) => return Ok(changed),
                Some(Refusal::Conflict) => tokio::time::sleep(backoff.next_delay()).await,
            }
        }
        Err(AwsError::Busy {
            operation: "TransactWriteItems",
            message: "other changes kept conflicting with this one".into(),
        })
    }

    async fn change_alone(&self, seen: &Runner, next: &Runner) -> Result<Option<Refusal>, AwsError> {
        let call = self.client.put_item().table_name(&self.name).set_item(Some(next.write()));
        let call = call.condition_expression(AS_SEEN).set_expression_attribute_names(Some(seen_names()));
        match call.set_expression_attribute_values(Some(seen_values(seen))).send().await {
            Ok(_) => Ok(None),
            Err(error) => match put_refused(&error) {
                Some(refusal) => Ok(Some(refusal)),
                None => Err(AwsError::new("PutItem", error)),
            },
        }
    }

    /// Changes the runner and the item of a slot, or neither.
    async fn change_with(
        &self,
        seen: &Runner,
        next: &Runner,
        slot: TransactWriteItem,
    ) -> Result<Option<Refusal>, AwsError> {
        let runner = Put::builder()
            .table_name(&self.name)
            .set_item(Some(next.write()))
            .condition_expression(AS_SEEN)
            .set_expression_attribute_names(Some(seen_names()))
            .set_expression_attribute_values(Some(seen_values(seen)));
        let runner = runner.build().map_err(|error| AwsError::malformed("TransactWriteItems", error.to_string()))?;
        let runner = TransactWriteItem::builder().put(runner).build();
        match self.client.transact_write_items().transact_items(runner).transact_items(slot).send().await {
            Ok(_) => Ok(None),
            Err(error) => match transaction_refused(&error) {
                Some(refusal) => Ok(Some(refusal)),
                None => Err(AwsError::new("TransactWriteItems", error)),
            },
        }
    }

    fn taking(&self, runner: &Runner, slot: &str) -> Result<TransactWriteItem, AwsError> {
        let put = Put::builder()
            .table_name(&self.name)
            .item("id", string(&slot_key(slot)))
            .item("runner", string(&runner.instance))
            .item("run_id", string(runner.run_id.as_deref().unwrap_or_default()))
            .item("connection", string(runner.connection.as_deref().unwrap_or_default()))
            .condition_expression("attribute_not_exists(id)");
        let put = put.build().map_err(|error| AwsError::malformed("TransactWriteItems", error.to_string()))?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    fn leaving(&self, runner: &Runner, slot: &str) -> Result<TransactWriteItem, AwsError> {
        let delete = Delete::builder()
            .table_name(&self.name)
            .key("id", string(&slot_key(slot)))
            .condition_expression("attribute_not_exists(id) OR #run_id = :run_id")
            .expression_attribute_names("#run_id", "run_id")
            .expression_attribute_values(":run_id", string(runner.run_id.as_deref().unwrap_or_default()));
        let delete = delete.build().map_err(|error| AwsError::malformed("TransactWriteItems", error.to_string()))?;
        Ok(TransactWriteItem::builder().delete(delete).build())
    }

    /// The runner of a slot. In this module, `slot` always includes the installation.
    pub async fn slot(&self, slot: &str) -> Result<Option<ClaimedRunner>, AwsError> {
        let Some(item) = self.get(&slot_key(slot)).await? else { return Ok(None) };
        let fields = Fields(&item);
        Ok(Some(ClaimedRunner { runner: fields.text("runner")?.to_owned(), run_id: fields.text("run_id")?.to_owned() }))
    }

    /// Removes the item of a slot, if it belongs to this run.
    pub async fn forget_slot(&self, slot: &str, run_id: &str) -> Result<(), AwsError> {
        let call = self.client.delete_item().table_name(&self.name).key("id", string(&slot_key(slot)));
        let call = call.condition_expression("#run_id = :run_id").expression_attribute_names("#run_id", "run_id");
        deleted_or_changed(call.expression_attribute_values(":run_id", string(run_id)).send().await)
    }

    /// Lets a runner renew its command until then, unless another runner of its group does.
    pub async fn begin_renewal(
        &self,
        group: &str,
        instance: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<bool, AwsError> {
        let call = self.client.put_item().table_name(&self.name);
        let call = call
            .item("id", string(&renewal_key(group)))
            .item("runner", string(instance))
            .item("until", number(until.as_millisecond()))
            .item("expires", number(until.as_second() + 1))
            .condition_expression("attribute_not_exists(id) OR #runner = :runner OR #until <= :now")
            .expression_attribute_names("#runner", "runner")
            .expression_attribute_names("#until", "until")
            .expression_attribute_values(":runner", string(instance))
            .expression_attribute_values(":now", number(now.as_millisecond()));
        match call.send().await {
            Ok(_) => Ok(true),
            Err(error) => match put_refused(&error) {
                Some(_) => Ok(false),
                None => Err(AwsError::new("PutItem", error)),
            },
        }
    }

    /// The runner's command is ready again, so the next runner of its group may renew its own.
    pub async fn end_renewal(&self, group: &str, instance: &str) -> Result<(), AwsError> {
        let call = self.client.delete_item().table_name(&self.name).key("id", string(&renewal_key(group)));
        let call = call.condition_expression("#runner = :runner").expression_attribute_names("#runner", "runner");
        deleted_or_changed(call.expression_attribute_values(":runner", string(instance)).send().await)
    }

    /// Stores a heartbeat.
    pub async fn beat(&self, instance: &str, at: Timestamp) -> Result<(), AwsError> {
        self.beat_of(instance, at, None).await
    }

    /// Stores the heartbeat of a registering agent.
    pub async fn beat_of(&self, instance: &str, at: Timestamp, agent: Option<&str>) -> Result<(), AwsError> {
        let item = [
            ("id", string(&beat_key(instance))),
            ("at", number(at.as_millisecond())),
            ("expires", number(after(at, BEAT_REMEMBERED).as_second())),
        ];
        let agent = agent.map(|agent| ("agent", string(agent)));
        self.put(item.into_iter().chain(agent).map(|(name, value)| (name.to_owned(), value)).collect()).await
    }

    /// The agent that registered last, if it has sent no heartbeat since. It may not have received the answer.
    pub async fn registering(&self, instance: &str) -> Result<Option<String>, AwsError> {
        let item = self.get(&beat_key(instance)).await?.unwrap_or_default();
        Ok(item.get("agent").and_then(|agent| agent.as_s().ok()).cloned())
    }

    /// The time of a runner's last heartbeat.
    pub async fn last_heartbeat(&self, instance: &str) -> Result<Option<Timestamp>, AwsError> {
        let Some(item) = self.get(&beat_key(instance)).await? else { return Ok(None) };
        Fields(&item).number("at").map(|at| Some(from_millis(at)))
    }

    /// The times of many runners' last heartbeats.
    pub async fn last_heartbeats(&self, instances: &[&str]) -> Result<HashMap<String, Timestamp>, AwsError> {
        let mut heartbeats = HashMap::new();
        for instances in instances.chunks(AT_ONCE) {
            let keys = instances.iter().map(|instance| Item::from([("id".to_owned(), string(&beat_key(instance)))]));
            let keys = KeysAndAttributes::builder().set_keys(Some(keys.collect())).consistent_read(true);
            let keys = keys.build().map_err(|error| AwsError::malformed("BatchGetItem", error.to_string()))?;
            let mut left = HashMap::from([(self.name.clone(), keys)]);
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            for _ in 0..TRIES {
                let answer = self.client.batch_get_item().set_request_items(Some(left)).send().await;
                let answer = answer.map_err(|error| AwsError::new("BatchGetItem", error))?;
                for item in answer.responses.unwrap_or_default().into_values().flatten() {
                    let fields = Fields(&item);
                    let instance = fields.text("id")?.trim_start_matches("beat#").to_owned();
                    heartbeats.insert(instance, from_millis(fields.number("at")?));
                }
                left = answer.unprocessed_keys.unwrap_or_default();
                if left.is_empty() {
                    break;
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
            if !left.is_empty() {
                let message = "DynamoDB kept leaving out some items".into();
                return Err(AwsError::Busy { operation: "BatchGetItem", message });
            }
        }
        Ok(heartbeats)
    }

    /// All demands for a fresh runner of a group, including those that were not repeated in time.
    pub async fn demands(&self, group: &str) -> Result<Vec<Demand>, AwsError> {
        self.listed(&demand_state(group)).await?.iter().map(Demand::read).collect()
    }

    pub async fn demand(&self, slot: &str) -> Result<Option<Demand>, AwsError> {
        self.get(&demand_key(slot)).await?.as_ref().map(Demand::read).transpose()
    }

    pub async fn put_demand(&self, demand: &Demand) -> Result<(), AwsError> {
        let item = [
            ("id", string(&demand_key(&demand.slot))),
            ("state", string(&demand_state(&demand.group))),
            ("at", number(demand.at.as_millisecond())),
            ("first", number(demand.first.as_millisecond())),
            ("expires", number(after(demand.at, DEMAND_REMEMBERED).as_second())),
        ];
        self.put(item.map(|(name, value)| (name.to_owned(), value)).into()).await
    }

    pub async fn forget_demand(&self, slot: &str) -> Result<(), AwsError> {
        self.delete(&demand_key(slot)).await
    }
}

impl Demand {
    fn read(item: &Item) -> Result<Self, AwsError> {
        let fields = Fields(item);
        let at = from_millis(fields.number("at")?);
        Ok(Self {
            slot: fields.text("id")?.trim_start_matches("demand#").to_owned(),
            group: fields.text("state")?.trim_start_matches("demand#").to_owned(),
            at,
            first: fields.optional_number("first").map_or(at, from_millis),
        })
    }
}

fn demand_state(group: &str) -> String {
    format!("demand#{group}")
}

fn seen_names() -> HashMap<String, String> {
    ["state", "run_id", "threshold"].map(|name| (format!("#{name}"), name.to_owned())).into()
}

fn seen_values(seen: &Runner) -> Item {
    let values = [
        (":state", string(seen.state.as_str())),
        (":run_id", string(seen.run_id.as_deref().unwrap_or_default())),
        (":threshold", string(&text(seen.expires_at))),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The result of a conditional deletion. An item that has changed stays.
fn deleted_or_changed<T>(answer: Result<T, SdkError<DeleteItemError>>) -> Result<(), AwsError> {
    match answer {
        Ok(_) => Ok(()),
        Err(error) if error.as_service_error().is_some_and(DeleteItemError::is_conditional_check_failed_exception) => {
            Ok(())
        }
        Err(error) => Err(AwsError::new("DeleteItem", error)),
    }
}

fn put_refused(error: &SdkError<PutItemError>) -> Option<Refusal> {
    match error.as_service_error()? {
        PutItemError::ConditionalCheckFailedException(_) => Some(Refusal::Changed(Changed::Refused)),
        PutItemError::TransactionConflictException(_) => Some(Refusal::Conflict),
        _ => None,
    }
}

/// Why a transaction of a runner and a slot, in this order, was cancelled.
fn transaction_refused(error: &SdkError<TransactWriteItemsError>) -> Option<Refusal> {
    let TransactWriteItemsError::TransactionCanceledException(cancelled) = error.as_service_error()? else {
        return None;
    };
    let codes: Vec<_> = cancelled.cancellation_reasons().iter().map(CancellationReason::code).collect();
    let failed = Some("ConditionalCheckFailed");
    if codes.first() == Some(&failed) {
        return Some(Refusal::Changed(Changed::Refused));
    }
    if codes.get(1) == Some(&failed) {
        return Some(Refusal::Changed(Changed::Taken));
    }
    let passes = |code: &Option<&str>| code.is_some_and(|code| TRANSIENT.contains(&code));
    codes.iter().any(passes).then_some(Refusal::Conflict)
}
