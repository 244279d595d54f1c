//! A Nomad that is unavailable, slow, busy or protected, and a server that is not Nomad.

use std::time::Duration;

use greenroom::config::provider::NomadConfig;
use greenroom::providers::{Provider, ProviderError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{SLOT, agent, bot, config, count_of, expect_no_violations, fails, provider, slot, statuses, with};
use crate::support::{NomadFake, NomadFault, NomadOperation, NomadOptions, NomadTiming, NomadTls};

/// How often the provider sends a request while Nomad has trouble.
const ASKED_AT_MOST: usize = 4;

#[tokio::test]
async fn a_request_whose_answer_was_lost_is_not_carried_out_twice() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    // Once within a call, and so often that the call gives up.
    for lost in [1, ASKED_AT_MOST] {
        let may_fail = |error: Option<ProviderError>| assert!(error.is_none_or(|error| error.retryable));
        nomad.break_next(NomadOperation::Register, NomadFault::Lost, lost);
        may_fail(provider.start(&bot("a")).await.err());
        provider.start(&bot("a")).await.unwrap();
        assert_eq!(statuses(&nomad).pop().as_deref(), Some("running"), "the provider waits for the earlier start");
        nomad.break_next(NomadOperation::Register, NomadFault::Lost, lost);
        may_fail(provider.stop(&slot(), true).await.err());
        provider.stop(&slot(), true).await.unwrap();
        nomad.break_next(NomadOperation::Deregister, NomadFault::Lost, lost);
        may_fail(provider.delete(&slot()).await.err());
        provider.delete(&slot()).await.unwrap();
        assert_eq!(nomad.faults_left(), 0);
    }
    assert_eq!(statuses(&nomad), ["complete", "complete"]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_request_without_an_answer_times_out() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    provider.ping().await.unwrap();
    nomad.break_next(NomadOperation::List, NomadFault::Hanging, 1);
    // From here on, the clock advances whenever nothing else is to be done.
    tokio::time::pause();
    let error = fails(provider.ping()).await;
    assert!(error.retryable && error.message.contains("did not answer in time"), "{error}");
}

#[tokio::test]
async fn short_trouble_is_retried() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    for operation in [NomadOperation::Read, NomadOperation::Register, NomadOperation::Allocations] {
        for fault in [NomadFault::NoLeader, NomadFault::Throttled, NomadFault::Lost] {
            nomad.break_next(operation, fault, 1);
        }
    }
    provider.start(&bot("a")).await.unwrap();
    assert_eq!((nomad.faults_left(), statuses(&nomad)), (0, vec!["running".to_owned()]));
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_slow_answer_is_waited_for() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    for operation in [NomadOperation::Register, NomadOperation::Read, NomadOperation::Allocations] {
        nomad.break_next(operation, NomadFault::Slow(Duration::from_millis(300)), 1);
    }
    provider.start(&bot("a")).await.unwrap();
    assert_eq!(statuses(&nomad), ["running"]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn lasting_trouble_is_a_transient_error() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    for (fault, message) in [(NomadFault::Throttled, "429"), (NomadFault::NoLeader, "No cluster leader")] {
        nomad.break_next(NomadOperation::Read, fault, 4 * ASKED_AT_MOST);
        nomad.break_next(NomadOperation::List, fault, 2 * ASKED_AT_MOST);
        let errors = [
            fails(provider.start(&bot("b"))).await,
            fails(provider.stop(&slot(), true)).await,
            fails(provider.delete(&slot())).await,
            fails(provider.inspect(&slot())).await,
            fails(provider.list()).await,
            fails(provider.ping()).await,
        ];
        for error in errors {
            assert!(error.retryable && error.message.contains(message), "{error}");
        }
    }
    assert_eq!((nomad.faults_left(), statuses(&nomad)), (0, vec!["running".to_owned()]));
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn an_unavailable_nomad_is_a_transient_error() {
    let away = {
        let nomad = NomadFake::start().await;
        config(&nomad)
    };
    let error = fails(with(away, "ours").list()).await;
    assert!(error.retryable && error.message.contains("does not answer"), "{error}");
}

#[tokio::test]
async fn two_replicas_that_start_the_same_bot_start_it_once() {
    let nomad = NomadFake::start().await;
    let replicas = [provider(&nomad), provider(&nomad), provider(&nomad)];
    let (wanted, waiting) = (bot("a"), agent());
    let made = futures_util::future::join_all(replicas.iter().map(|replica| replica.create(&wanted))).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    let started = futures_util::future::join_all(replicas.iter().map(|replica| replica.start(&wanted))).await;
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    assert_eq!(statuses(&nomad), ["running"]);
    replicas[0].delete(&slot()).await.unwrap();
    let started = futures_util::future::join_all(replicas.iter().map(|replica| replica.start(&waiting))).await;
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    assert!(nomad.running(SLOT).is_some());
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn of_two_replicas_with_different_starts_one_wins_and_never_two_allocations_run() {
    let timing = NomadTiming { stop: Duration::from_millis(30), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    let mut events = nomad.events();
    let (first, second) = (provider(&nomad), provider(&nomad));
    for round in 0..5 {
        let (a, b) = (bot(&format!("a{round}")), bot(&format!("b{round}")));
        let (a, b) = tokio::join!(first.start(&a), second.start(&b));
        assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
        for error in [a, b].into_iter().filter_map(Result::err) {
            assert!(error.retryable, "{error}");
        }
    }
    first.stop(&slot(), true).await.unwrap();
    let mut running = 0;
    while let Ok(event) = events.try_recv() {
        running += if matches!(event, crate::support::NomadEvent::Started { .. }) { 1 } else { -1 };
        assert!((0..=1).contains(&running), "{running} allocations run at once");
    }
    assert_eq!((running, count_of(&nomad)), (0, serde_json::json!(0)));
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn an_unknown_token_is_refused_with_nomads_message_and_never_shown() {
    let nomad = NomadFake::start().await;
    let secret = "a-secret-that-nobody-may-see";
    let provider = with(NomadConfig { token: Some(secret.to_owned().into()), ..config(&nomad) }, "ours");
    let errors = [
        fails(provider.ping()).await,
        fails(provider.list()).await,
        fails(provider.inspect(&slot())).await,
        fails(provider.start(&bot("a"))).await,
        fails(provider.create(&bot("a"))).await,
        fails(provider.stop(&slot(), true)).await,
        fails(provider.delete(&slot())).await,
    ];
    for error in errors {
        assert!(!error.retryable && error.message.contains("Permission denied"), "{error}");
        assert!(!error.message.contains(secret));
    }
    assert!(!format!("{provider:?}").contains(secret));
}

#[tokio::test]
async fn jobs_are_those_of_one_namespace() {
    let namespaces = ["default", "bots"].map(str::to_owned).to_vec();
    let options = NomadOptions { namespaces, is_management: true, ..NomadOptions::default() };
    let nomad = NomadFake::start_with(options).await;
    let named = |namespace: &str| {
        with(
            NomadConfig { namespace: namespace.to_owned(), region: Some("global".to_owned()), ..config(&nomad) },
            "ours",
        )
    };
    let bots = named("bots");
    assert_eq!(bots.start(&bot("a")).await.unwrap(), "bots/pool-meet-001");
    assert_eq!(nomad.jobs()[SLOT]["Namespace"], "bots");
    assert_eq!(named("default").list().await.unwrap(), []);
    assert_eq!(bots.list().await.unwrap().len(), 1);
    let nowhere = named("nowhere");
    let error = fails(nowhere.list()).await;
    assert!(
        !error.retryable && error.message.contains("Namespace not found"),
        "a missing answer is not an empty list: {error}"
    );
    let error = fails(nowhere.start(&bot("a"))).await;
    assert!(!error.retryable && error.message.contains("nonexistent namespace"), "{error}");
    let elsewhere = with(NomadConfig { region: Some("mars".to_owned()), ..config(&nomad) }, "ours");
    assert!(fails(elsewhere.list()).await.message.contains("No path to region"));
    expect_no_violations(&nomad);
}

/// The configuration for a Nomad with certificates. It names only these files.
fn secured(nomad: &NomadFake, folder: &tempfile::TempDir, authority: bool, client: bool) -> NomadConfig {
    let certificates = nomad.certificates();
    let file = |name: &str, pem: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    NomadConfig {
        ca_cert: authority.then(|| file("ca.pem", &certificates.authority)),
        client_cert: client.then(|| file("client.pem", &certificates.client)),
        client_key: client.then(|| file("client-key.pem", &certificates.client_key)),
        ..config(nomad)
    }
}

#[tokio::test]
async fn nomad_and_its_client_check_each_others_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let options = |tls| NomadOptions { tls, ..NomadOptions::default() };
    let nomad = NomadFake::start_with(options(NomadTls::On)).await;
    with(secured(&nomad, &folder, true, false), "ours").start(&bot("a")).await.unwrap();
    let error = fails(with(secured(&nomad, &folder, false, false), "ours").ping()).await;
    assert!(!error.retryable && error.message.contains("certificate"), "{error}");
    let nomad = NomadFake::start_with(options(NomadTls::Mutual)).await;
    with(secured(&nomad, &folder, true, true), "ours").start(&bot("a")).await.unwrap();
    assert!(with(secured(&nomad, &folder, true, false), "ours").ping().await.is_err());
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn the_certificate_is_checked_against_the_configured_server_name() {
    let folder = tempfile::tempdir().unwrap();
    let options = NomadOptions { tls: NomadTls::Mutual, host: "127.0.0.2", ..NomadOptions::default() };
    let nomad = NomadFake::start_with(options).await;
    let config = secured(&nomad, &folder, true, true);
    let named = |name: &str| with(NomadConfig { tls_server_name: Some(name.to_owned()), ..config.clone() }, "ours");
    named("server.global.nomad").start(&bot("a")).await.unwrap();
    // The certificate is neither for this address nor for another region, and a retry does not change that.
    for provider in [with(config.clone(), "ours"), named("server.mars.nomad")] {
        let error = fails(provider.ping()).await;
        assert!(!error.retryable && error.message.contains("certificate"), "{error}");
        assert!(error.message.contains("127.0.0.2"), "{error}");
    }
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_certificate_file_that_cannot_be_read_fails_every_call() {
    let nomad = NomadFake::start().await;
    let folder = tempfile::tempdir().unwrap();
    let nonsense = folder.path().join("nonsense.pem").display().to_string();
    std::fs::write(&nonsense, "no certificate").unwrap();
    let good = secured(&nomad, &folder, true, true);
    let missing = "/nowhere/ca.pem".to_owned();
    let wrong = [
        NomadConfig { ca_cert: Some(missing.clone()), ..good.clone() },
        NomadConfig { ca_cert: Some(nonsense.clone()), ..good.clone() },
        NomadConfig { client_key: Some(missing.clone()), ..good.clone() },
        NomadConfig { client_cert: Some(nonsense.clone()), ..good },
    ];
    for config in wrong {
        let provider = with(config, "ours");
        for error in
            [fails(provider.ping()).await, fails(provider.start(&bot("a"))).await, fails(provider.list()).await]
        {
            assert!(!error.retryable, "{error}");
            assert!(error.message.contains(&missing) || error.message.contains(&nonsense), "{error}");
        }
        assert!(provider.check(1).await[0].found.contains(".pem"));
    }
}

/// A server that is not Nomad, and answers every request with this.
async fn impostor(status: &'static str, body: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test]
async fn an_answer_that_is_not_nomads_is_an_error_and_never_an_empty_list() {
    let nomad = NomadFake::start().await;
    let page = "<html><body>job not found</body></html>";
    for (status, body) in
        [("404 Not Found", page), ("200 OK", page), ("200 OK", "{}"), ("302 Found", ""), ("200 OK", "")]
    {
        let provider = with(NomadConfig { address: impostor(status, body).await, ..config(&nomad) }, "ours");
        let errors = [
            fails(provider.inspect(&slot())).await,
            fails(provider.list()).await,
            fails(provider.stop(&slot(), true)).await,
            fails(provider.delete(&slot())).await,
            fails(provider.ping()).await,
        ];
        for error in errors {
            assert!(error.retryable, "{status} {body}: {error}");
        }
    }
}

#[tokio::test]
async fn a_token_in_an_error_of_nomad_is_removed() {
    let nomad = NomadFake::start().await;
    let token = Some("the-token".to_owned().into());
    let address = impostor("500 Internal Server Error", "what is the-token").await;
    let provider = with(NomadConfig { address, token, ..config(&nomad) }, "ours");
    let error = fails(provider.ping()).await;
    assert!(error.message.contains("what is …") && !error.message.contains("the-token"), "{error}");
}
