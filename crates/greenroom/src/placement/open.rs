//! What can be given out at this moment, in its order: what is there before a place to which something is still to be brought,
//! what stays before what may be taken away, the smallest that fits first; and of those alike the one of the first pool, where an
//! agent waits before where one has to be started, then the least recently used.

use std::collections::VecDeque;

use domain::{Attributes, Requirements, SlotName};
use jiff::Timestamp;

use super::desk::Desk;

/// The order of slots that are alike.
type Turn = (bool, Option<Timestamp>, i64);

/// Slots that are alike, of one pool, in the order in which they are given out.
struct Alike {
    desk: usize,
    kind: Attributes,
    slots: VecDeque<(Turn, SlotName)>,
}

pub struct Open(Vec<Alike>);

impl Open {
    /// What is free on these desks.
    pub fn of(desks: &[Desk]) -> Self {
        let mut open: Vec<Alike> = Vec::new();
        for (at, desk) in desks.iter().enumerate().filter(|(_, desk)| desk.pool.place.is_some()) {
            for row in desk.open_rows() {
                let turn = (!desk.waits_in(row), row.last_used_at, row.number);
                let slot = (turn, row.name.clone());
                match open.iter_mut().find(|alike| alike.desk == at && alike.kind == row.attributes) {
                    Some(alike) => alike.slots.push_back(slot),
                    None => open.push(Alike { desk: at, kind: row.attributes.clone(), slots: [slot].into() }),
                }
            }
        }
        for alike in &mut open {
            alike.slots.make_contiguous().sort();
        }
        Self(open)
    }

    /// Takes the best slot for somebody, with the place of its desk; one that is only a place where that `may` be.
    pub fn take(&mut self, desks: &[Desk], wants: Option<&Requirements>, may: bool) -> Option<(usize, SlotName)> {
        let fitting = self.0.iter_mut().filter_map(|alike| {
            let pool = &desks[alike.desk].pool;
            let (turn, _) = alike.slots.front()?;
            let size = pool.size_for(wants, &alike.kind).filter(|_| may || !pool.is_places())?;
            Some(((pool.is_places(), size, alike.desk, *turn), alike))
        });
        let (_, best) = fitting.min_by_key(|(order, _)| *order)?;
        best.slots.pop_front().map(|(_, slot)| (best.desk, slot))
    }
}
