//! The clients of the three AWS services. They use the credentials that the machine has: environment, profile or role.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};

use crate::Settings;

const CONNECT: Duration = Duration::from_secs(3);
const ATTEMPT: Duration = Duration::from_secs(10);
const ALL_ATTEMPTS: Duration = Duration::from_secs(25);
const ATTEMPTS: u32 = 3;

/// One client for each service. A clone shares the same clients.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    pub sqs: aws_sdk_sqs::Client,
    pub dynamodb: aws_sdk_dynamodb::Client,
    pub autoscaling: aws_sdk_autoscaling::Client,
}

impl Clients {
    pub async fn connect(settings: &Settings) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT)
            .operation_attempt_timeout(ATTEMPT)
            .operation_timeout(ALL_ATTEMPTS)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(settings.region.clone()))
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts);
        if let Some(endpoint) = &settings.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        let config = loader.load().await;
        Self {
            sqs: aws_sdk_sqs::Client::new(&config),
            dynamodb: aws_sdk_dynamodb::Client::new(&config),
            autoscaling: aws_sdk_autoscaling::Client::new(&config),
        }
    }
}
