//! Errors of Coolify itself, and errors of a proxy between the provider and Coolify.

use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::Provider;
use greenroom::providers::check::Verdict;
use rstest::rstest;

use crate::support::{CoolifyFault as Fault, CoolifyFixture, CoolifyOperation as Operation};

#[tokio::test]
async fn a_listing_that_fails_is_an_error() {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.break_next(Operation::List, Fault::Fail, 3);
    let error = fixture.process().list().await.unwrap_err();
    assert!(error.retryable && error.message.contains("Server Error"), "{error:?}");
    assert_eq!(fixture.process().list().await.unwrap(), []);
    assert_eq!(fixture.count(Operation::List), 4);
}

#[tokio::test]
async fn lost_answers_and_server_errors_of_coolify_are_retried() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    for operation in [Operation::Create, Operation::BulkEnvs, Operation::Describe, Operation::Start, Operation::Stop] {
        fixture.fake.break_next(operation, Fault::Lost, 1);
    }
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!((fixture.only().status.as_str(), fixture.fake.deployments()), ("exited", vec!["finished"]));
    for operation in [Operation::Describe, Operation::Start, Operation::Deployments, Operation::Stop, Operation::Delete]
    {
        fixture.fake.break_next(operation, Fault::Fail, 1);
    }
    provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap();
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    provider.delete(&CoolifyFixture::slot(1)).await.unwrap();
    assert_eq!(fixture.fake.applications(), []);
    fixture.no_violations();
}

#[tokio::test]
async fn a_refusal_of_coolify_is_permanent_with_its_message_and_without_the_token() {
    let fixture = CoolifyFixture::plain().await;
    let with = |change: fn(&mut CoolifyConfig)| {
        let mut config = fixture.config();
        change(&mut config);
        fixture.process_with(config)
    };
    let refused = [
        (with(|config| config.api_token = "2|other-secret".into()), "Unauthenticated"),
        (with(|config| config.project_uuid = "nowhere".to_owned()), "Project not found"),
        (with(|config| config.environment_name = "nowhere".to_owned()), "Environment not found"),
        (with(|config| config.server_uuid = "nowhere".to_owned()), "Server not found"),
        (with(|config| config.tag = "not a tag".to_owned()), "docker_registry_image_tag"),
        (with(|config| drop(config.env.insert("no key".to_owned(), String::new()))), "key"),
    ];
    for (provider, message) in refused {
        let error = provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap_err();
        assert!(!error.retryable && error.message.contains(message), "{error:?}");
        assert!(!error.message.contains("secret"), "{error:?}");
        assert!(!format!("{provider:?}").contains("other-secret"));
    }
}

#[tokio::test]
async fn a_refused_connection_is_a_transient_error() {
    let fixture = CoolifyFixture::plain().await;
    let config = CoolifyConfig { api_url: "http://127.0.0.1:9".to_owned(), ..fixture.config() };
    let provider = fixture.process_with(config);
    for error in [provider.ping().await.unwrap_err(), provider.list().await.unwrap_err()] {
        assert!(error.retryable && error.message.contains("does not answer"), "{error:?}");
    }
    assert_eq!(provider.check(3).await[0].verdict, Verdict::Bad);
}

#[tokio::test]
async fn a_token_that_may_not_read_secrets_is_enough() {
    let fixture = CoolifyFixture::new(|settings| settings.reads_secrets = false).await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert_eq!(provider.list().await.unwrap().len(), 1);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    fixture.fake.fail_next_deployment(&["no"]);
    let error = provider.start(&CoolifyFixture::spec(1, "b")).await.unwrap_err();
    // An unknown reason may be temporary.
    assert!(error.retryable && error.message.contains("`read:sensitive`"), "{error:?}");
}

#[rstest]
#[case::page_of_a_proxy(Fault::Page(404))]
#[case::refusal_of_a_proxy(Fault::Page(403))]
#[case::gateway(Fault::Refuse(404, "no Route matched with those values"))]
#[case::switched_off_for_a_while(Fault::Refuse(403, "API is disabled."))]
#[case::odd(Fault::Refuse(400, "Invalid token."))]
#[tokio::test]
async fn a_refused_status_request_does_not_fail_a_start_permanently(#[case] fault: Fault) {
    let fixture = CoolifyFixture::plain().await;
    for operation in [Operation::Deployments, Operation::List] {
        fixture.fake.break_next(operation, fault, 3);
        let error = fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap_err();
        assert!(error.retryable, "{error:?}");
        fixture.fake.mend();
    }
    fixture.process().start(&CoolifyFixture::spec(1, "a")).await.unwrap();
}

#[tokio::test]
async fn a_page_of_a_proxy_is_not_an_answer_of_coolify() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    for operation in [Operation::Create, Operation::BulkEnvs, Operation::Describe, Operation::Start] {
        fixture.fake.break_next(operation, Fault::Page(404), 1);
    }
    let mut tries = 0;
    while let Err(error) = provider.start(&CoolifyFixture::spec(1, "a")).await {
        assert!(error.retryable && tries < 5, "{error:?}");
        tries += 1;
    }
    assert_eq!(fixture.fake.applications().len(), 1);
    // A page of a proxy does not prove that an application is gone either.
    fixture.fake.break_next(Operation::Stop, Fault::Page(404), 1);
    fixture.fake.break_next(Operation::Logs, Fault::Page(404), 1);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert!(!fixture.fake.runs(&fixture.only().uuid));
    fixture.no_violations();
}
