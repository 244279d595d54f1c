//! What is shown of bots that have not ended beyond their rows: the position in the queue, the estimated wait, the
//! deadline, and the error of the last start. It is read once for many bots.

use std::collections::HashMap;
use std::time::Duration;

use domain::deadline::BotClocks;
use domain::{BotId, Deadlines, ShownStatus, Status};
use uuid::Uuid;

use super::App;
use super::dto::BotDto;
use super::problem::Problem;
use crate::explain::moment::after;
use crate::placement::view::QueuePlace;
use crate::store::BotRow;

/// The facts about some bots that have not ended.
#[derive(Debug, Default)]
pub struct OpenBotFacts {
    clocks: HashMap<Uuid, BotClocks>,
    places: HashMap<Uuid, QueuePlace>,
    /// What went wrong with the last try to start those that are being deployed.
    start_errors: HashMap<Uuid, String>,
}

impl OpenBotFacts {
    /// Reads the facts about these bots, with at most three queries. Positions in the queue are kept in memory.
    pub async fn read(&mut self, app: &App, open: &[(BotId, Status)]) -> Result<(), Problem> {
        let ids: Vec<BotId> = open.iter().map(|(id, _)| *id).collect();
        let clocks = app.store.bot_clocks(&ids).await?;
        self.clocks = clocks.into_iter().map(|(bot, clocks)| (bot.0, clocks)).collect();
        let reserved = open.iter().filter(|(_, status)| *status == Status::Reserved).map(|(id, _)| *id);
        let reserved: Vec<BotId> = reserved.collect();
        if reserved.is_empty() {
            return Ok(());
        }
        let places = app.placement.read_view(&app.store, |view| {
            let places = reserved.iter().filter_map(|bot| view.queue_place(*bot));
            places.map(|place| (place.bot_id.0, place)).collect()
        });
        self.places = places.await?;
        let errors = app.store.start_errors(&reserved).await?;
        self.start_errors = errors.into_iter().map(|(bot, error)| (bot.0, error)).collect();
        Ok(())
    }

    /// A bot with these facts.
    pub fn bot_dto(&self, bot: BotRow, deadlines: &Deadlines) -> BotDto {
        let shown = bot.shown();
        let mut dto = BotDto::from(bot);
        let clocks = self.clocks.get(&dto.id);
        dto.deadline_at = clocks.and_then(|clocks| deadlines.of_bot(clocks)).map(|(_, deadline)| deadline);
        if let Some(place) = self.places.get(&dto.id).filter(|_| shown == ShownStatus::Queued) {
            dto.queue_position = Some(place.position);
            dto.estimated_wait_ms = Some(place.estimated_wait_ms);
        }
        if shown == ShownStatus::Deploying {
            dto.error = self.start_errors.get(&dto.id).cloned().or(dto.error);
        }
        dto
    }
}

/// One bot, with everything that is shown of it except its sessions.
pub async fn bot_dto(app: &App, bot: BotRow) -> Result<BotDto, Problem> {
    let mut facts = OpenBotFacts::default();
    if !bot.status.is_ended() {
        facts.read(app, &[(bot.id, bot.status)]).await?;
    }
    Ok(facts.bot_dto(bot, &app.deadlines))
}

/// A bot that was placed just now. Its clocks follow from its row, so that placing a bot costs no query more.
pub fn new_bot_dto(bot: BotRow, is_awaited: bool, deadlines: &Deadlines) -> BotDto {
    let now = bot.created_at;
    let wait = Duration::from_millis(u64::try_from(bot.queue_timeout_ms).unwrap_or(0));
    let (is_queued, is_deploying) = match bot.shown() {
        ShownStatus::Queued => (true, false),
        ShownStatus::Deploying => (false, !is_awaited),
        _ => (false, false),
    };
    let clocks = BotClocks {
        status: bot.status,
        status_since: bot.status_since,
        queue_until: is_queued.then(|| after(now, wait)),
        deploy_until: is_deploying.then(|| after(now, deadlines.deploy)),
        awaited_since: is_awaited.then_some(now),
        session: None,
    };
    let facts = OpenBotFacts { clocks: HashMap::from([(bot.id.0, clocks)]), ..OpenBotFacts::default() };
    facts.bot_dto(bot, deadlines)
}
