//! The actions of operators that the audit log records.

use crate::text_enum::text_enum;

/// What an operator did. A name in the plural is one call for several bots or slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuditAction {
    /// Created a user with its first API key.
    UserCreated,
    /// Changed a user.
    UserChanged,
    /// Deleted a user with all its data.
    UserDeleted,
    /// Gave a user a new API key.
    KeyRotated,
    /// Requested a bot for a user.
    BotCreated,
    /// Asked a bot to leave.
    BotStopped,
    /// Gave a bot another configuration.
    BotReconfigured,
    /// Assigned a bot by hand.
    BotAssigned,
    /// Asked several bots to leave.
    BotsStopped,
    /// Changed the size of a pool.
    PoolChanged,
    /// Probed a pool.
    PoolProbed,
    /// Recovered a slot.
    SlotRecovered,
    /// Drained a slot.
    SlotDrained,
    /// Deleted a slot.
    SlotDeleted,
    /// Recovered several slots.
    SlotsRecovered,
    /// Drained several slots.
    SlotsDrained,
    /// Deleted several slots.
    SlotsDeleted,
    /// Ran a keeper.
    KeeperRun,
}

/// A text that is not the name of an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an action of the audit log")]
pub struct UnknownAuditAction(pub String);

text_enum!(AuditAction, UnknownAuditAction {
    UserCreated = "user_created",
    UserChanged = "user_changed",
    UserDeleted = "user_deleted",
    KeyRotated = "key_rotated",
    BotCreated = "bot_created",
    BotStopped = "bot_stopped",
    BotReconfigured = "bot_reconfigured",
    BotAssigned = "bot_assigned",
    BotsStopped = "bots_stopped",
    PoolChanged = "pool_changed",
    PoolProbed = "pool_probed",
    SlotRecovered = "slot_recovered",
    SlotDrained = "slot_drained",
    SlotDeleted = "slot_deleted",
    SlotsRecovered = "slots_recovered",
    SlotsDrained = "slots_drained",
    SlotsDeleted = "slots_deleted",
    KeeperRun = "keeper_run",
});
