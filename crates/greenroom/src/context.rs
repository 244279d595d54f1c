//! This module holds what most parts of the server need: the store, the time and random values. Each part gets it when
//! it is created, so that no part takes these from another.

use crate::clock::Clock;
use crate::random::Random;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct Context {
    pub store: Store,
    pub clock: Clock,
    pub random: Random,
}

impl Context {
    pub fn new(store: Store, clock: Clock, random: Random) -> Self {
        Self { store, clock, random }
    }
}
