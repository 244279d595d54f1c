//! Background jobs that bring the records and the world back together. Each opens with the exact condition on which it
//! acts, takes no input, and may run in every replica at once: looking and acting are apart, and the act tests again
//! what the look saw.
//!
//! - [`sweeper`]: bots whose state has lasted too long

pub mod sweeper;
