//! Measuring: each figure is taken beside something named, in one run, so that the machine does not matter.
//!
//! - [`place`]: the full path of a bot over HTTP, beside pgbench with bare statements on the same PostgreSQL
//! - [`start`]: from the answer to a running command, in a hot slot beside a stopped one and `docker run`
//! - [`next`]: from a bot's end to the next in line assigned, beside a poll of one second
//! - [`matching`]: finding one in a hundred that fits, in the store beside the way over SQS and DynamoDB
//! - [`hostile`]: what others see while a hostile user attacks, beside what they see alone
//! - [`house`]: the server under measurement
//! - [`client`]: a lean HTTP client, so that what is measured is the server
//! - [`container`]: an image of this program on a Docker Engine
//! - [`figures`]: medians and percentiles

mod client;
mod container;
mod figures;
pub mod hostile;
mod house;
pub mod matching;
pub mod next;
pub mod place;
pub mod start;

type Done<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
