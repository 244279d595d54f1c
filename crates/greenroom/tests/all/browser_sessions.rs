//! People who sign in with a browser, and sites that try to use their sessions.

use futures_util::StreamExt;
use reqwest::header::{AUTHORIZATION, COOKIE, ORIGIN, SET_COOKIE};
use reqwest::{Method, RequestBuilder, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{ADMIN_TOKEN, Backend, Client, Database, Process, meet_link, until};

/// A browser that is signed in at one server.
#[derive(Clone, Debug)]
struct Browser {
    http: reqwest::Client,
    url: String,
    cookie: String,
}

impl Browser {
    /// Signs in with an admin token or an API key.
    async fn sign_in(url: &str, token: &str) -> Self {
        let http = reqwest::Client::new();
        let request = http.post(format!("{url}/session")).header(ORIGIN, url).json(&json!({ "token": token }));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
        let (cookie, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
        Self { http, url: url.to_owned(), cookie: cookie.to_owned() }
    }

    /// The same browser at another replica, or with another cookie.
    fn at(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    fn with_cookie(&self, cookie: &str) -> Self {
        Self { cookie: cookie.to_owned(), ..self.clone() }
    }

    /// A request with the cookie, as any site can cause it.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).header(COOKIE, &self.cookie)
    }

    /// A request of the server's own page.
    fn own(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).header(ORIGIN, &self.url)
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    async fn status(&self, path: &str) -> StatusCode {
        self.get(path).await.0
    }
}

async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let (status, text) = (response.status(), response.text().await.unwrap());
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn code(answer: (StatusCode, Value)) -> (StatusCode, String) {
    (answer.0, answer.1["code"].as_str().unwrap_or_default().to_owned())
}

fn refused(code: &str) -> (StatusCode, String) {
    let status = if code == "unauthorized" { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
    (status, code.to_owned())
}

fn meeting(number: usize) -> Value {
    json!({"meeting_url": meet_link(number)})
}

async fn served(backend: Backend) -> (Database, Process, Client) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(100).await;
    (database, server, user)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_session_may_do_what_its_token_may_until_it_is_ended(#[case] backend: Backend) {
    let (database, server, client) = served(backend).await;
    let operator = Browser::sign_in(&server.url, ADMIN_TOKEN).await;
    let user = Browser::sign_in(&server.url, client.token()).await;

    let (status, shown) = operator.get("/session").await;
    assert_eq!((status, &shown["kind"], shown.get("user_id")), (StatusCode::OK, &json!("operator"), None));
    assert!(shown["expires_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap() > jiff::Timestamp::now());
    assert_eq!(operator.status("/admin/pools").await, StatusCode::OK);
    let resized = operator.own(Method::PATCH, "/admin/pools/zoom").json(&json!({"max_slots": 7}));
    assert_eq!(answer(resized).await.1["pool"]["max_slots"], 7);
    assert_eq!(code(operator.get("/bots").await), refused("unauthorized"), "an operator is not a user");

    let (status, made) = answer(user.own(Method::POST, "/bots").json(&meeting(0))).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (_, shown) = user.get("/session").await;
    assert_eq!((&shown["kind"], &shown["user_id"]), (&json!("user"), &made["bot"]["user_id"]));
    let bot = format!("/bots/{}", made["bot"]["id"].as_str().unwrap());
    assert_eq!(client.show_bot(made["bot"]["id"].as_str().unwrap()).await["id"], made["bot"]["id"]);
    assert_eq!(answer(user.own(Method::DELETE, &bot)).await.1["bot"]["id"], made["bot"]["id"]);
    for path in ["/admin/pools", "/admin/users", "/admin/bots", "/admin/slots", "/admin/keepers"] {
        assert_eq!(code(user.get(path).await), refused("unauthorized"), "{path}");
    }
    let (status, _) = answer(user.own(Method::POST, "/admin/users").json(&json!({}))).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);

    // Another user's session sees nothing of it.
    let other = Browser::sign_in(&server.url, server.admin().user(1).await.token()).await;
    assert_eq!(other.status(&bot).await, StatusCode::NOT_FOUND);
    assert_eq!(answer(other.own(Method::DELETE, &bot)).await.0, StatusCode::NOT_FOUND);

    // A reader of the database cannot use a session.
    let mut reader = database.reader().await;
    let rows = reader.pairs("SELECT token_hash, coalesce(admin_proof, '') FROM browser_sessions").await;
    assert_eq!(rows.len(), 3);
    let value = operator.cookie.split_once('=').unwrap().1;
    let admin_hash = greenroom::admission::api_keys::hash(ADMIN_TOKEN);
    assert!(rows.iter().all(|(hash, proof)| hash != value && proof != value && *proof != admin_hash), "{rows:?}");

    for browser in [&operator, &user] {
        let response = browser.own(Method::DELETE, "/session").send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let cleared = response.headers()[SET_COOKIE].to_str().unwrap();
        assert_eq!(cleared, "greenroom_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
        for path in ["/session", "/bots", "/admin/pools"] {
            assert_eq!(code(browser.get(path).await), refused("unauthorized"), "{path}");
        }
        let posted = browser.own(Method::POST, "/bots").json(&meeting(1));
        assert_eq!(code(answer(posted).await), refused("unauthorized"));
        // Again: there is nothing left to end.
        assert_eq!(answer(browser.own(Method::DELETE, "/session")).await.0, StatusCode::NO_CONTENT);
    }
    assert_eq!(other.status("/session").await, StatusCode::OK);
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_sets_no_cookie() {
    let (_database, server, user) = served(Backend::Sqlite).await;
    let forged = format!("{}x", user.token());
    let http = reqwest::Client::new();
    let post = |body: Value| http.post(format!("{}/session", server.url)).json(&body);
    for token in ["", "wrong", "gra_x", &forged] {
        let response = post(json!({ "token": token })).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{token}");
        assert!(!response.headers().contains_key(SET_COOKIE));
    }
    assert_eq!(answer(post(json!({}))).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer(post(json!({"token": ADMIN_TOKEN, "kind": "user"}))).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    // Behind a proxy with TLS the cookie is for TLS only.
    let proxied = post(json!({"token": ADMIN_TOKEN})).header("X-Forwarded-Proto", "https").send().await.unwrap();
    assert!(proxied.headers()[SET_COOKIE].to_str().unwrap().ends_with("; Secure"));
    assert_eq!(proxied.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn another_site_cannot_change_anything_with_the_cookie() {
    let (_database, server, client) = served(Backend::Sqlite).await;
    let user = Browser::sign_in(&server.url, client.token()).await;
    let operator = Browser::sign_in(&server.url, ADMIN_TOKEN).await;
    let bot = client.bot(&meet_link(0)).await;
    let host = server.url.strip_prefix("http://").unwrap();
    let origins = [
        None,
        Some("null".to_owned()),
        Some("https://evil.example".to_owned()),
        Some(format!("https://{host}")),
        Some(format!("http://{host}.evil.example")),
        Some("http://127.0.0.1".to_owned()),
    ];
    for origin in &origins {
        let calls = [
            user.request(Method::POST, "/bots").json(&meeting(1)),
            // What a form of another site can send without asking first.
            user.request(Method::POST, "/bots").header("content-type", "text/plain").body(meeting(1).to_string()),
            user.request(Method::DELETE, &format!("/bots/{bot}")),
            user.request(Method::PUT, &format!("/bots/{bot}/config")).json(&json!({"language": "de"})),
            user.request(Method::DELETE, "/session"),
            operator.request(Method::POST, "/admin/users").json(&json!({"email": "a@b.c", "name": "Eve"})),
            operator.request(Method::PATCH, "/admin/pools/zoom").json(&json!({"max_slots": 1})),
        ];
        for call in calls {
            let call = match origin {
                Some(origin) => call.header(ORIGIN, origin),
                None => call,
            };
            assert_eq!(code(answer(call).await), refused("forbidden_origin"), "{origin:?}");
        }
    }
    // Nor can it sign the browser in as somebody else.
    let evil = user.http.post(format!("{}/session", server.url)).header(ORIGIN, "https://evil.example");
    let response = evil.body(json!({ "token": ADMIN_TOKEN }).to_string()).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(!response.headers().contains_key(SET_COOKIE));

    assert_eq!(client.get("/bots").await["bots"].as_array().unwrap().len(), 1);
    assert!(client.show_bot(&bot).await["ended_at"].is_null());
    assert_eq!(server.admin().get("/admin/pools/zoom").await["pool"]["max_slots"], 2000);
    assert_eq!(user.status("/session").await, StatusCode::OK, "it is still signed in");
}

#[tokio::test]
async fn a_key_or_token_of_the_request_has_precedence_over_the_cookie() {
    let (_database, server, client) = served(Backend::Sqlite).await;
    let operator = Browser::sign_in(&server.url, ADMIN_TOKEN).await;
    let by_key = |request: RequestBuilder| request.header(AUTHORIZATION, format!("Bearer {}", client.token()));
    // The key needs no Origin, and has only its own rights.
    let (status, made) = answer(by_key(operator.request(Method::POST, "/bots")).json(&meeting(0))).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    for request in [
        by_key(operator.request(Method::GET, "/admin/pools")),
        operator.request(Method::GET, "/admin/pools").header("X-API-Key", client.token()),
        operator.request(Method::GET, "/admin/pools").header(AUTHORIZATION, "Bearer wrong"),
        operator.request(Method::GET, "/admin/pools").header(AUTHORIZATION, "Bearer "),
    ] {
        assert_eq!(code(answer(request).await), refused("unauthorized"));
    }
    let user = Browser::sign_in(&server.url, client.token()).await;
    let by_admin = user.request(Method::GET, "/admin/pools").header(AUTHORIZATION, format!("Bearer {ADMIN_TOKEN}"));
    assert_eq!(answer(by_admin).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_cookie_that_was_tampered_with_or_sent_twice_is_refused() {
    let (_database, server, client) = served(Backend::Sqlite).await;
    let operator = Browser::sign_in(&server.url, ADMIN_TOKEN).await;
    let user = Browser::sign_in(&server.url, client.token()).await;
    let (name, value) = operator.cookie.split_once('=').unwrap();
    let other_end = if value.ends_with('A') { 'B' } else { 'A' };
    let hash = greenroom::admission::api_keys::hash(value);
    for cookie in [
        format!("{name}={}{other_end}", &value[..value.len() - 1]),
        format!("{name}={}", &value[1..]),
        format!("{name}={value}{value}"),
        format!("{name}="),
        format!("{name}={hash}"),
        format!("{name}={}", "A".repeat(43)),
        format!("{name}={ADMIN_TOKEN}"),
        format!("{}; {}", operator.cookie, user.cookie),
        format!("{}; {}", user.cookie, operator.cookie),
        format!("{}; {}", operator.cookie, operator.cookie),
        format!("{}={value}", name.to_uppercase()),
    ] {
        let browser = operator.with_cookie(&cookie);
        for path in ["/session", "/admin/pools", "/bots"] {
            assert_eq!(code(browser.get(path).await), refused("unauthorized"), "{cookie} {path}");
        }
    }
    assert_eq!(operator.with_cookie(&format!("theme=dark; {}", operator.cookie)).status("/session").await, 200);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_rotated_key_ends_its_sessions_and_no_others(#[case] backend: Backend) {
    let (_database, server, client) = served(backend).await;
    let other = Browser::sign_in(&server.url, server.admin().user(1).await.token()).await;
    let user = Browser::sign_in(&server.url, client.token()).await;
    let id = user.get("/session").await.1["user_id"].as_str().unwrap().to_owned();
    // Also when the old key stays valid for a while.
    let rotate = async |grace: u64| {
        let path = format!("/admin/users/{id}/keys");
        server.admin().post(&path, json!({"old_keys_valid_for_ms": grace})).await.1["api_key"].take()
    };
    let key = rotate(3_600_000).await;
    assert_eq!(user.status("/bots").await, StatusCode::UNAUTHORIZED);
    assert_eq!(answer(client.request(Method::GET, "/bots")).await.0, StatusCode::OK);
    let user = Browser::sign_in(&server.url, key.as_str().unwrap()).await;
    rotate(0).await;
    assert_eq!(user.status("/bots").await, StatusCode::UNAUTHORIZED);
    assert_eq!(user.status("/session").await, StatusCode::UNAUTHORIZED);
    assert_eq!(other.status("/session").await, StatusCode::OK);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn another_admin_token_ends_the_sessions_of_operators_only(#[case] backend: Backend) {
    let (database, server, client) = served(backend).await;
    let operator = Browser::sign_in(&server.url, ADMIN_TOKEN).await;
    let user = Browser::sign_in(&server.url, client.token()).await;
    server.kill().await;
    let server = Process::start_with(&database, &["--set", "admin_token=another-admin-token"]).await;
    assert_eq!(operator.at(&server.url).status("/session").await, StatusCode::UNAUTHORIZED);
    assert_eq!(operator.at(&server.url).status("/admin/pools").await, StatusCode::UNAUTHORIZED);
    assert_eq!(user.at(&server.url).status("/session").await, StatusCode::OK);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_expired_session_is_refused_and_pruned_and_old_ones_make_room(#[case] backend: Backend) {
    let (database, server, client) = served(backend).await;
    let operator = Browser::sign_in(&server.url, ADMIN_TOKEN).await;
    database.execute("UPDATE browser_sessions SET expires_at = '2020-01-01T00:00:00.000000Z'").await;
    assert_eq!(operator.status("/session").await, StatusCode::UNAUTHORIZED);
    let oldest = Browser::sign_in(&server.url, client.token()).await;
    let mut reader = database.reader().await;
    let mut rows = async || reader.pairs("SELECT token_hash, token_hash FROM browser_sessions").await.len();
    assert_eq!(rows().await, 1);
    for _ in 0..100 {
        Browser::sign_in(&server.url, client.token()).await;
    }
    assert_eq!(rows().await, 100);
    until("the oldest session has ended", async || oldest.status("/session").await == StatusCode::UNAUTHORIZED).await;
}

#[tokio::test]
async fn a_session_is_valid_on_every_replica_on_postgres_and_ends_on_all_of_them() {
    let database = Database::new(Backend::Postgres).await;
    let (one, two) = (Process::start(&database).await, Process::start(&database).await);
    let client = one.admin().user(10).await;
    let user = Browser::sign_in(&one.url, client.token()).await;
    let there = user.at(&two.url);
    assert_eq!(there.status("/bots").await, StatusCode::OK);
    let (status, _) = answer(there.own(Method::POST, "/bots").json(&meeting(0))).await;
    assert_eq!(status, StatusCode::CREATED);
    let stream = there.request(Method::GET, "/events").send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);

    assert_eq!(answer(user.own(Method::DELETE, "/session")).await.0, StatusCode::NO_CONTENT);
    assert_eq!(user.status("/bots").await, StatusCode::UNAUTHORIZED, "at once where it was ended");
    until("the other replica knows it", async || there.status("/bots").await == StatusCode::UNAUTHORIZED).await;
    // A stream that was opened with it ends as well.
    let mut body = stream.bytes_stream();
    let ended = async { while body.next().await.is_some_and(|read| read.is_ok()) {} };
    tokio::time::timeout(std::time::Duration::from_secs(30), ended).await.expect("the stream ends");
}
