//! What most parts of the server are built on: the store, the time and random values. It is passed to a part when that part
//! is made, so that no part takes these from another.

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
