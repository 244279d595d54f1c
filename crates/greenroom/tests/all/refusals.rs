//! Errors that say what to do: services that are not supported, platforms without a pool.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Backend, ServerFixture, process_pool};

#[tokio::test]
async fn a_refusal_names_the_field_the_service_and_the_remedy() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 1", "true")).await;
    let refused = async |body: Value| {
        let (status, answer) = fixture.user.post("/bots", body).await;
        assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{answer}");
        answer["detail"].as_str().unwrap().to_owned()
    };
    for (body, expected) in [
        (json!({"meeting_url": "https://acme.webex.com/meet/jane"}), "`meeting_url`: Webex is not supported yet"),
        (json!({"meeting_url": "https://discord.gg/abc"}), "`meeting_url`: Discord is not supported yet"),
        (json!({"platform": "webex", "native_meeting_id": "1"}), "`platform`: Webex is not supported yet"),
        (json!({"meeting_url": "https://zoom.us/j/81234567890"}), "`platform`: no pool serves zoom"),
        (json!({"platform": "zoom", "native_meeting_id": "81234567890"}), "`platform`: no pool serves zoom"),
        (json!({"meeting_url": "https://zoom.us/my/jane"}), "`meeting_url`: the name in this personal Zoom link"),
    ] {
        let detail = refused(body).await;
        assert!(detail.starts_with(expected), "{detail}");
        if expected.contains("no pool") {
            assert!(detail.contains("add a [[pool]] with platform = \"zoom\""), "{detail}");
        }
    }
}
