//! What a bot saw last: sent by the bot or its agent, read by operators as evidence.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::{BotId, ConnectionId, ImageKind, SCREENSHOT_BYTES_MAX};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::App;
use super::extract::{Asked, Bot, Id, Operator};
use super::problem::{CallbackRefusals, Problem, ProblemDto};
use crate::lifecycle::callbacks::Caller;
use crate::store::Screenshot;

/// The image comes from a bot. A browser that opens it must not run anything that is in it.
const POLICY: &str = "default-src 'none'; sandbox";
/// How much of a wrong media type a refusal repeats.
const SHOWN_CHARS_MAX: usize = 100;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ScreenshotQuery {
    /// The id of the connection, from the bot's data.
    pub connection_id: Uuid,
}

/// The bytes of an image.
#[derive(Debug, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct Image(#[allow(dead_code)] Vec<u8>);

#[derive(Debug, Serialize, ToSchema)]
pub struct ScreenshotAnswer {
    /// Always `true`.
    pub stored: bool,
}

/// Store a screenshot of the bot
///
/// The server keeps the last screenshot of each bot as evidence for operators: this one replaces the one before. It
/// stays after the end of the bot.
#[utoipa::path(
    post, path = "/callback/screenshot", tag = "For bots", operation_id = "callback_screenshot",
    params(ScreenshotQuery),
    request_body(description = "The image, at most 512 KiB", content((Image = "image/png"), (Image = "image/jpeg"))),
    responses((status = 200, description = "The server stored the screenshot", body = ScreenshotAnswer),
              (status = 413, description = "`too_large`: the image has more than 512 KiB",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 415, description = "`unsupported_media_type`: `Content-Type` is not image/png or image/jpeg",
               body = ProblemDto, content_type = "application/problem+json"),
              CallbackRefusals),
    security(("bot_token" = [])),
)]
pub async fn received(
    State(app): State<App>,
    Bot(claim): Bot,
    Asked(query): Asked<ScreenshotQuery>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<ScreenshotAnswer>, Problem> {
    let kind = kind_of(&headers)?;
    if body.len() > SCREENSHOT_BYTES_MAX {
        let detail = format!("`body`: is larger than {SCREENSHOT_BYTES_MAX} bytes");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
    }
    if ImageKind::of(&body) != Some(kind) {
        return Err(Problem::invalid("body", format!("does not begin like an image of type {kind}")));
    }
    let caller = Caller { claim, connection_id: ConnectionId(query.connection_id) };
    app.lifecycle.keep_screenshot(caller, Screenshot { kind, image: body.into() }).await?;
    Ok(Json(ScreenshotAnswer { stored: true }))
}

/// The kind of image that a request says it has.
fn kind_of(headers: &HeaderMap) -> Result<ImageKind, Problem> {
    let said = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    // Parameters, such as a charset, say nothing about an image.
    let media_type = said.as_deref().and_then(|said| said.split(';').next()).unwrap_or_default().trim();
    media_type.to_ascii_lowercase().parse().map_err(|_| {
        let shown: String = media_type.chars().take(SHOWN_CHARS_MAX).collect();
        let detail = format!("`Content-Type`: is `{shown}`, but must be image/png or image/jpeg");
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
    })
}

/// Get the last screenshot of a bot of any user
///
/// Returns the image. Works while the bot runs and after its end.
#[utoipa::path(
    get, path = "/admin/bots/{id}/screenshot", tag = "For operators", operation_id = "admin_bots_screenshot",
    params(("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The image", content((Image = "image/png"), (Image = "image/jpeg"))),
              (status = 404, description = "`not_found`: there is no such bot, or it sent no screenshot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn of_any_bot(State(app): State<App>, _: Operator, Id(id): Id<BotId>) -> Result<Response, Problem> {
    let Some(Screenshot { kind, image }) = app.store.screenshot(id).await? else {
        let what = if app.store.bot(id).await?.is_some() { "screenshot" } else { "bot" };
        return Err(Problem::not_found(what));
    };
    let headers = [
        (CONTENT_TYPE, kind.as_str()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, image).into_response())
}
