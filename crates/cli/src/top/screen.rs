//! What the screen shows and what a person has chosen on it: panes, selections, filters, the explanation that is open.
//! It does no I/O. The view draws it, and keys change it.

use std::collections::HashMap;

use uuid::Uuid;

use super::explanation::{AttentionItem, ExplanationLine, PoolSettings};
use super::rows::{RowKey, rows};
use super::state::Fleet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Pools,
    Slots,
    Bots,
    Queue,
    Keepers,
    Attention,
}

impl Pane {
    pub const ALL: [Pane; 6] = [Pane::Pools, Pane::Slots, Pane::Bots, Pane::Queue, Pane::Keepers, Pane::Attention];

    pub fn title(self) -> &'static str {
        ["Pools", "Slots", "Bots", "Queue", "Keepers", "Attention"][self as usize]
    }

    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    pub fn previous(self) -> Self {
        Self::ALL[(self as usize + Self::ALL.len() - 1) % Self::ALL.len()]
    }
}

/// The rows of a pane, of which as many are drawn as fit.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub rows: Vec<RowKey>,
    pub selected: usize,
    /// The first row that is drawn.
    pub offset: usize,
    /// How many rows were drawn last.
    pub height: usize,
    /// Only rows with these words are listed.
    pub filter: String,
    /// How many rows there are without the filter.
    pub total: usize,
}

impl List {
    pub fn selected(&self) -> Option<&RowKey> {
        self.rows.get(self.selected)
    }

    /// Takes new rows. The selected row stays selected while it is there; the first one stays the first, so that new
    /// rows at the top are seen.
    fn replace(&mut self, rows: Vec<RowKey>, total: usize) {
        let earlier = self.selected().filter(|_| self.selected > 0).cloned();
        let again = earlier.and_then(|earlier| rows.iter().position(|row| row.is_same(&earlier)));
        self.selected = again.unwrap_or(self.selected).min(rows.len().saturating_sub(1));
        (self.rows, self.total) = (rows, total);
    }

    pub fn step(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// Makes the selected row visible in this many rows.
    pub fn scroll(&mut self, height: usize) {
        self.height = height;
        let last_offset = self.rows.len().saturating_sub(height);
        let lowest = (self.selected + 1).saturating_sub(height);
        self.offset = self.offset.clamp(lowest, self.selected.max(lowest)).min(last_offset);
    }
}

/// A bot or a slot that the server can explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Bot(Uuid),
    Slot(String),
}

impl Subject {
    pub fn path(&self) -> String {
        match self {
            Subject::Bot(id) => format!("/admin/bots/{id}/explain"),
            Subject::Slot(name) => format!("/admin/slots/{name}/explain"),
        }
    }

    pub fn title(&self) -> String {
        match self {
            Subject::Bot(id) => format!("Bot {id}"),
            Subject::Slot(name) => format!("Slot {name}"),
        }
    }
}

/// The window over the panes.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    pub title: String,
    /// What the server is asked about. `None` if everything is known already.
    pub subject: Option<Subject>,
    pub lines: Vec<ExplanationLine>,
    pub problem: Option<String>,
    pub is_loading: bool,
    pub scroll: usize,
    /// The live state of the subject when the server was asked. When it changes, the server is asked again.
    pub seen: Option<(usize, i64)>,
}

#[derive(Clone, Debug, Default)]
pub enum Mode {
    #[default]
    Normal,
    /// The filter of the pane is being typed.
    Filter,
    Help,
    Detail(Detail),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    Live,
    /// Since when, in the time of the server; why; and when it is tried again.
    Lost {
        since: i64,
        problem: String,
        retry_at: i64,
    },
}

/// The picture that a pause holds.
#[derive(Clone, Debug)]
pub struct Frozen {
    pub fleet: Fleet,
    pub now: i64,
}

#[derive(Debug)]
pub struct Screen {
    pub server: String,
    pub fleet: Fleet,
    pub frozen: Option<Frozen>,
    pub settings: HashMap<String, PoolSettings>,
    pub attention: Vec<AttentionItem>,
    pub attention_more: usize,
    pub link: Link,
    /// The time of the server, in seconds since 1970.
    pub now: i64,
    pub focus: Pane,
    pub lists: [List; 6],
    /// The pool whose slots, bots and queue are shown. `None`: all of them.
    pub scope: Option<String>,
    pub mode: Mode,
    /// Slots as a grid, or as a list.
    pub is_grid: bool,
    /// How many slots a line of the grid had.
    pub grid_columns: usize,
}

impl Screen {
    pub fn new(server: String, scope: Option<String>) -> Self {
        Self {
            server,
            fleet: Fleet::default(),
            frozen: None,
            settings: HashMap::new(),
            attention: Vec::new(),
            attention_more: 0,
            link: Link::Live,
            now: 0,
            focus: if scope.is_some() { Pane::Slots } else { Pane::Pools },
            lists: Default::default(),
            scope,
            mode: Mode::Normal,
            is_grid: true,
            grid_columns: 1,
        }
    }

    /// The fleet that is drawn.
    pub fn shown(&self) -> &Fleet {
        self.frozen.as_ref().map_or(&self.fleet, |frozen| &frozen.fleet)
    }

    /// The time to which ages are drawn.
    pub fn shown_now(&self) -> i64 {
        self.frozen.as_ref().map_or(self.now, |frozen| frozen.now)
    }

    pub fn list(&self, pane: Pane) -> &List {
        &self.lists[pane as usize]
    }

    pub fn list_mut(&mut self, pane: Pane) -> &mut List {
        &mut self.lists[pane as usize]
    }

    /// The index of the chosen pool.
    pub fn scope_index(&self) -> Option<usize> {
        self.scope.as_ref().and_then(|name| self.shown().pool_named(name))
    }

    /// Lists the rows again, after the fleet or a choice has changed.
    pub fn refresh(&mut self) {
        for pane in Pane::ALL {
            let (rows, total) = rows(self, pane);
            self.list_mut(pane).replace(rows, total);
        }
        // The chosen pool is the selected row, also after the pools have changed.
        let chosen = self.scope_index().map_or(0, |pool| pool + 1);
        if self.list(Pane::Pools).filter.is_empty() {
            self.list_mut(Pane::Pools).selected = chosen;
        }
    }

    /// Chooses the pool of the selected row.
    pub fn choose_pool(&mut self) {
        self.scope = match self.list(Pane::Pools).selected() {
            Some(RowKey::Pool(pool)) => self.shown().pools.get(*pool).map(|pool| pool.name.clone()),
            Some(RowKey::AllPools) => None,
            _ => return,
        };
        for pane in [Pane::Slots, Pane::Bots, Pane::Queue] {
            let list = self.list_mut(pane);
            (list.selected, list.offset) = (0, 0);
        }
        self.refresh();
    }

    pub fn toggle_pause(&mut self) {
        self.frozen = match self.frozen {
            Some(_) => None,
            None => Some(Frozen { fleet: self.fleet.clone(), now: self.now }),
        };
        self.refresh();
    }

    /// The live state of a subject: its status, and since when.
    pub fn live_state(&self, subject: &Subject) -> Option<(usize, i64)> {
        match subject {
            Subject::Bot(id) => self.fleet.bots.get(id).map(|bot| (bot.status, bot.since)),
            Subject::Slot(name) => {
                let (pool, number) = name.strip_prefix("pool-")?.rsplit_once('-')?;
                let slot = self.fleet.slot((self.fleet.pool_named(pool)?, number.parse().ok()?))?;
                Some((slot.status, slot.since))
            }
        }
    }

    /// The subject of the open explanation, if it has changed since the server was asked.
    pub fn outdated_subject(&mut self) -> Option<Subject> {
        let Mode::Detail(Detail { subject: Some(subject), seen, is_loading: false, .. }) = &self.mode else {
            return None;
        };
        let (subject, seen) = (subject.clone(), *seen);
        let current = self.live_state(&subject);
        if current == seen {
            return None;
        }
        self.note_asked(&subject);
        Some(subject)
    }

    /// The server is asked about the subject of the open explanation.
    pub fn note_asked(&mut self, subject: &Subject) {
        let state = self.live_state(subject);
        if let Mode::Detail(detail) = &mut self.mode {
            (detail.is_loading, detail.seen) = (true, state);
        }
    }

    /// The server has answered. An answer about something that is no longer open is dropped.
    pub fn explained(&mut self, subject: &Subject, answer: Result<Vec<ExplanationLine>, String>) {
        let Mode::Detail(detail) = &mut self.mode else { return };
        if detail.subject.as_ref() != Some(subject) {
            return;
        }
        detail.is_loading = false;
        match answer {
            Ok(lines) => (detail.lines, detail.problem) = (lines, None),
            // The earlier explanation stays readable.
            Err(problem) => detail.problem = Some(problem),
        }
    }
}
