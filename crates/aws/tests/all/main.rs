//! Tests from outside. A test that needs moto has `moto` in its name. `./scripts/test` starts moto.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod moto;
mod support;

mod agent_on_moto;
mod claim_on_moto;
mod crash_on_moto;
mod documents;
mod fresh_capacity_on_moto;
mod init_on_moto;
mod keeper_on_moto;
mod pickup_on_moto;
