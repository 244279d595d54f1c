//! What is tested from outside. A test that needs moto has its name in its own; `./scripts/test` brings it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod moto;
mod support;

mod agent_on_moto;
mod claim_on_moto;
mod crash_on_moto;
mod documents;
mod fresh_on_moto;
mod init_on_moto;
mod keep_on_moto;
mod pickup_on_moto;
