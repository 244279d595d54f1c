//! Screenshots, over HTTP: what a bot may send, who may read it, and that it stays after the bot's end.

use reqwest::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, ServerFixture, found, meet_link, process_pool};

const LARGEST: usize = 512 * 1024;

/// An image of this size, with every byte that there is.
fn image(signature: &[u8], size: usize) -> Vec<u8> {
    let rest = (0..=u8::MAX).cycle().take(size - signature.len());
    signature.iter().copied().chain(rest).collect()
}

fn png(size: usize) -> Vec<u8> {
    image(b"\x89PNG\r\n\x1a\n", size)
}

fn jpeg(size: usize) -> Vec<u8> {
    image(b"\xff\xd8\xff\xe0", size)
}

/// Sends an image, and gives the status and the code or the answer.
async fn send(life: &Life, content_type: &str, image: Vec<u8>) -> (StatusCode, Value) {
    let path = format!("/callback/screenshot?connection_id={}", life.connection_id);
    let request = life.client.request(Method::POST, &path).header(CONTENT_TYPE, content_type).body(image);
    let response = request.send().await.unwrap();
    (response.status(), response.json().await.unwrap())
}

async fn refused(life: &Life, content_type: &str, image: Vec<u8>) -> (u16, String, String) {
    let (status, problem) = send(life, content_type, image).await;
    let text = |field: &str| problem[field].as_str().unwrap_or_default().to_owned();
    (status.as_u16(), text("code"), text("detail"))
}

/// The content type and the bytes of a bot's screenshot; `None` if it has none.
async fn screenshot(admin: &Client, bot: &str) -> Option<(String, Vec<u8>)> {
    let response = admin.request(Method::GET, &format!("/admin/bots/{bot}/screenshot")).send().await.unwrap();
    if response.status() == StatusCode::NOT_FOUND {
        return None;
    }
    assert_eq!(response.status(), StatusCode::OK);
    let header = |name| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header(X_CONTENT_TYPE_OPTIONS), "nosniff");
    assert_eq!(header(CONTENT_SECURITY_POLICY), "default-src 'none'; sandbox");
    assert_eq!(header(CACHE_CONTROL), "no-store");
    let content_type = header(CONTENT_TYPE);
    Some((content_type, response.bytes().await.unwrap().to_vec()))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_last_screenshot_is_kept_and_after_the_end_only_a_repeat_is_accepted(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let old = Life::assign(&admin, &bot).await;
    old.report("started", json!({})).await;
    assert_eq!(send(&old, "image/png", png(100)).await, (StatusCode::OK, json!({"stored": true})));
    let life = Life::assign(&admin, &bot).await;
    assert_eq!(refused(&old, "image/png", png(50)).await.1, "stale_connection");
    assert_eq!(refused(&life, "image/png", png(50)).await.1, "invalid_transition", "not before it has started");
    assert_eq!(screenshot(&admin, &bot).await, Some(("image/png".to_owned(), png(100))));
    life.report("started", json!({})).await;
    for _ in 0..2 {
        assert_eq!(send(&life, "image/png", png(LARGEST)).await.0, StatusCode::OK);
    }
    assert_eq!(screenshot(&admin, &bot).await, Some(("image/png".to_owned(), png(LARGEST))));
    assert_eq!(send(&life, "Image/JPEG; charset=x", jpeg(LARGEST)).await.0, StatusCode::OK);
    life.report("exited", json!({"exit_code": 1})).await;
    assert_eq!(send(&life, "image/jpeg", jpeg(LARGEST)).await, (StatusCode::OK, json!({"stored": true})));
    let (status, code, _) = refused(&life, "image/jpeg", jpeg(LARGEST - 1)).await;
    assert_eq!((status, code.as_str()), (410, "bot_ended"));
    assert_eq!(refused(&old, "image/jpeg", jpeg(LARGEST)).await.1, "stale_connection");
    assert_eq!(screenshot(&admin, &bot).await, Some(("image/jpeg".to_owned(), jpeg(LARGEST))));
    // Another process reads the same.
    server.kill().await;
    let server = Process::start(&database).await;
    assert_eq!(screenshot(&server.admin(), &bot).await, Some(("image/jpeg".to_owned(), jpeg(LARGEST))));
}

#[tokio::test]
async fn what_is_not_a_screenshot_is_refused_by_the_field_that_is_wrong() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&admin, &bot).await;
    life.report("started", json!({})).await;
    let gif = || b"GIF89a".to_vec();
    for (content_type, image, status, code, detail) in [
        ("text/html", png(100), 415, "unsupported_media_type", "`Content-Type`: is `text/html`, but must be"),
        ("image/svg+xml", png(100), 415, "unsupported_media_type", "`Content-Type`: is `image/svg+xml`, but must be"),
        ("", png(100), 415, "unsupported_media_type", "`Content-Type`: is ``, but must be"),
        ("image/png", jpeg(100), 422, "invalid", "`body`: does not begin like an image of type image/png"),
        ("image/jpeg", png(100), 422, "invalid", "`body`: does not begin like an image of type image/jpeg"),
        ("image/png", gif(), 422, "invalid", "`body`: does not begin"),
        ("image/png", vec![], 422, "invalid", "`body`: does not begin"),
        ("image/png", png(LARGEST + 1), 413, "too_large", "`body`: is larger than 524288 bytes"),
        ("image/png", png(2 * LARGEST + 1), 413, "too_large", "the body is larger than 1048576 bytes"),
    ] {
        let refusal = refused(&life, content_type, image).await;
        assert_eq!((refusal.0, refusal.1.as_str()), (status, code), "{content_type}: {}", refusal.2);
        assert!(refusal.2.starts_with(detail), "{}", refusal.2);
    }
    for (query, field) in
        [("", "connection_id"), ("?connection_id=1", "connection_id"), ("?connection=1", "connection")]
    {
        let path = format!("/callback/screenshot{query}");
        let request = life.client.request(Method::POST, &path).header(CONTENT_TYPE, "image/png").body(png(100));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY, "{query}");
        let detail = response.json::<Value>().await.unwrap()["detail"].take();
        assert!(detail.as_str().unwrap().contains(field), "{query}: {detail}");
    }
    let stranger = Life { client: life.client.with("grb_nobody"), ..life.clone() };
    assert_eq!(refused(&stranger, "image/png", png(100)).await.0, 401);
    let as_user = Life { client: user.clone(), ..life.clone() };
    assert_eq!(refused(&as_user, "image/png", png(100)).await.0, 401);
    assert_eq!(screenshot(&admin, &bot).await, None);
}

#[tokio::test]
async fn only_operators_read_a_screenshot() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&admin, &bot).await;
    life.report("started", json!({})).await;
    let path = format!("/admin/bots/{bot}/screenshot");
    let (status, problem) = admin.send(Method::GET, &path, None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
    assert_eq!(problem["detail"], "there is no such screenshot");
    assert_eq!(send(&life, "image/png", png(100)).await.0, StatusCode::OK);
    for client in [&user, &life.client, &admin.with("nobody")] {
        assert_eq!(client.send(Method::GET, &path, None).await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(user.send(Method::GET, &format!("/bots/{bot}/screenshot"), None).await.0, StatusCode::NOT_FOUND);
    for nobody in ["00000000-0000-7000-8000-000000000000", "x"] {
        let (status, problem) = admin.send(Method::GET, &format!("/admin/bots/{nobody}/screenshot"), None).await;
        assert_eq!((status, &problem["detail"]), (StatusCode::NOT_FOUND, &json!("there is no such bot")), "{nobody}");
    }
    assert!(screenshot(&admin, &bot).await.is_some());
}

/// Takes a screenshot in the meeting and one at its end, both in the same file.
const SHOOTS: &str = r#"
    shoot() { { printf '\211PNG\r\n\032\n'; printf '%s' "$1"; } > shot.png; echo '{"event": "screenshot", "path": "shot.png"}'; }
    echo '{"event": "joined"}'
    shoot meeting
    read leave
    shoot goodbye
"#;

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_screenshot_that_a_bot_names_outlives_its_bot_and_its_slot(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", SHOOTS)).await;
    let bot = fixture.active(1).await;
    let id = bot["id"].as_str().unwrap();
    let (content_type, image) = found("it is there", async || screenshot(&fixture.admin, id).await).await;
    assert_eq!((content_type.as_str(), image.ends_with(b"meeting")), ("image/png", true));
    fixture.leave(&bot).await;
    fixture.until_slots(1, 0).await;
    let (_, image) = screenshot(&fixture.admin, id).await.unwrap();
    assert!(image.ends_with(b"goodbye"), "{}", String::from_utf8_lossy(&image));
    let logged = fixture.user.get(&format!("/bots/{id}/logs")).await;
    assert!(!logged.to_string().contains("shot.png"), "an event is not log: {logged}");
}
