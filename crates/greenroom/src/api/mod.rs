//! HTTP, and nothing but the api knows HTTP. Handlers take what they need from the request by its type, ask admission,
//! lifecycle or the store, and give the answer its shape; they decide nothing.
//!
//! In reading order:
//! - [`middleware`], [`caller`], [`browser`], [`traffic_quota`], [`query`]: what stands around every request: who asks, and
//!   whether there is room
//! - [`extract`], [`problem`], [`dto`], [`pages`], [`compression`]: what comes in and what goes out
//! - [`bot_request`], [`requirements`], [`bots`], [`open_bots`], [`reading`], [`bot_lists`], [`logs`], [`explain`], [`events`]: for users
//! - [`callbacks`], [`agent_steps`], [`screenshots`], [`agent`], [`runners`]: for bots
//! - [`admin`], [`operator_bots`], [`pools`], [`pool_memory`], [`slots`], [`bulk`], [`gate`], [`keepers`], [`live`], [`attention`],
//!   [`stats_range`], [`stats`], [`audit`]: for operators
//! - [`session`], [`health`], [`gauges`], [`web`]: for everyone

pub mod admin;
pub mod agent;
mod agent_steps;
pub mod attention;
pub mod audit;
pub mod bot_lists;
pub mod bot_request;
pub mod bots;
pub mod browser;
pub mod bulk;
pub mod callbacks;
pub mod caller;
pub mod compression;
pub mod dto;
pub mod events;
pub mod explain;
pub mod extract;
pub mod gate;
pub mod gauges;
pub mod health;
pub mod keepers;
pub mod live;
pub mod logs;
pub mod middleware;
pub mod open_bots;
pub mod operator_bots;
pub mod pages;
mod pool_memory;
pub mod pools;
pub mod problem;
pub mod query;
pub mod reading;
pub mod requirements;
pub mod runners;
pub mod screenshots;
pub mod session;
pub mod slots;
pub mod stats;
pub mod stats_range;
#[cfg(test)]
mod tests;
pub mod traffic_quota;
pub mod web;

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use domain::Deadlines;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::server::ServerBuilder;
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{Content, Info, LicenseBuilder, OpenApi, PathItem, Ref, Response, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::admission::Admission;
use crate::admission::browser_sessions::BrowserSessions;
use crate::clock::Clock;
use crate::deployment::Deployment;
use crate::keepers::driver::Keepers;
use crate::lifecycle::Lifecycle;
use crate::live::Live;
use crate::placement::Placement;
use crate::random::Random;
use crate::readiness::Readiness;
use crate::runners::RunnerRegistry;
use crate::signals::Signals;
use crate::store::Store;
use compression::Unchanging;
use dto::StreamedEventDto;
use gauges::Gauges;
use middleware::Limits;
pub use pool_memory::PoolMemoryCache;
use traffic_quota::Quotas;

/// What every handler can reach.
#[derive(Clone, Debug)]
pub struct App(Arc<Inner>);

#[derive(Debug)]
pub struct Inner {
    /// For users and operators. What bots and agents ask is asked of the lifecycle's own.
    pub store: Store,
    pub clock: Clock,
    pub random: Random,
    pub signals: Signals,
    pub admission: Admission,
    pub lifecycle: Lifecycle,
    pub placement: Placement,
    pub deployment: Deployment,
    pub keepers: Keepers,
    pub live: Live,
    pub runners: RunnerRegistry,
    pub readiness: Readiness,
    pub deadlines: Deadlines,
    pub sessions: BrowserSessions,
    /// How users reach the server: pages there are its own.
    pub public_url: String,
    pub limits: Limits,
    pub quotas: Quotas,
    pub metrics: PrometheusHandle,
    pub gauges: Gauges,
    pub pool_memory: PoolMemoryCache,
    /// Cancelled when the server stops: what waits ends then, what works goes on.
    pub stopping: CancellationToken,
}

impl App {
    pub fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }
}

impl std::ops::Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Everything that the server answers to.
pub fn router(app: App) -> Router {
    let (routes, document) = documented().split_for_parts();
    let document = described(document);
    let json = Bytes::from(document.to_pretty_json().unwrap_or_default());
    let routes = routes
        .route("/openapi.json", get(move || openapi(json.clone())))
        .route("/", get(web::dashboard))
        .route("/docs", get(web::docs))
        .route("/assets/{*file}", get(web::asset));
    with_middleware(routes, app)
}

/// Puts around `routes` what stands around every request.
fn with_middleware(routes: Router<App>, app: App) -> Router {
    routes
        .fallback(middleware::no_such_path)
        .method_not_allowed_fallback(middleware::no_such_method)
        .layer(from_fn_with_state(app.clone(), middleware::read_body))
        .layer(from_fn_with_state(app.clone(), middleware::handle))
        .with_state(app)
}

/// The OpenAPI document by itself.
pub fn document() -> OpenApi {
    described(documented().split_for_parts().1)
}

async fn openapi(json: Bytes) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], Extension(Unchanging("openapi.json".into())), json)
}

fn documented() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(bots::create, bot_lists::list))
        .routes(routes!(bots::start))
        .routes(routes!(bots::stop))
        .routes(routes!(bots::configure_by_body))
        .routes(routes!(bot_lists::active))
        .routes(routes!(bot_lists::usage))
        .routes(routes!(bot_lists::meetings))
        .routes(routes!(reading::one, bots::delete))
        .routes(routes!(bots::configure))
        .routes(routes!(bots::delete_data))
        .routes(routes!(reading::events))
        .routes(routes!(reading::transcript))
        .routes(routes!(logs::of_own_bot))
        .routes(routes!(explain::own_bot))
        .routes(routes!(events::stream))
        .routes(routes!(callbacks::started))
        .routes(routes!(callbacks::status))
        .routes(routes!(callbacks::joined))
        .routes(routes!(callbacks::heartbeat))
        .routes(routes!(callbacks::exited))
        .routes(routes!(callbacks::transcript))
        .routes(routes!(logs::received))
        .routes(routes!(screenshots::received))
        .routes(routes!(callbacks::commands))
        .routes(routes!(admin::create_user, admin::users))
        .routes(routes!(admin::user, admin::change_user, admin::delete_user))
        .routes(routes!(admin::rotate_key))
        .routes(routes!(admin::bots, operator_bots::create))
        .routes(routes!(admin::bot, operator_bots::stop))
        .routes(routes!(operator_bots::configure))
        .routes(routes!(operator_bots::events))
        .routes(routes!(operator_bots::transcript))
        .routes(routes!(bulk::bots))
        .routes(routes!(logs::of_any_bot))
        .routes(routes!(explain::any_bot))
        .routes(routes!(screenshots::of_any_bot))
        .routes(routes!(admin::assign))
        .routes(routes!(agent::assignment))
        .routes(routes!(agent::not_ready))
        .routes(routes!(runners::register, runners::pool_settings))
        .routes(routes!(runners::heartbeat))
        .routes(routes!(runners::acknowledge))
        .routes(routes!(runners::release))
        .routes(routes!(runners::not_ready))
        .routes(routes!(runners::end))
        .routes(routes!(pools::pools))
        .routes(routes!(pools::pool, pools::change_pool))
        .routes(routes!(pools::probe_pool))
        .routes(routes!(slots::slots))
        .routes(routes!(slots::slot, slots::delete_slot))
        .routes(routes!(slots::recover_slot))
        .routes(routes!(slots::drain_slot))
        .routes(routes!(bulk::slots))
        .routes(routes!(explain::slot))
        .routes(routes!(attention::attention))
        .routes(routes!(stats::stats))
        .routes(routes!(gate::queue))
        .routes(routes!(gate::deployments))
        .routes(routes!(live::stream))
        .routes(routes!(keepers::keepers))
        .routes(routes!(keepers::run))
        .routes(routes!(audit::entries))
        .routes(routes!(session::sign_in, session::show, session::sign_out))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
}

/// The refusals that many calls share, by the name and the status that the document gives them.
fn refusals() -> [(&'static str, &'static str, Response); 5] {
    let refusal = |description: &str| {
        ResponseBuilder::new()
            .description(description)
            .content("application/problem+json", Content::new(Some(Ref::from_schema_name("Problem"))))
    };
    let seconds = HeaderBuilder::new().description(Some("How many seconds to wait before the next attempt")).build();
    let unavailable = "`overloaded`: the server has too much to do; `unavailable`: the database does not answer, or the \
                       server is stopping";
    [
        ("Unauthorized", "401", refusal("`unauthorized`: the key or token is missing or wrong").build()),
        ("NotFound", "404", refusal("`not_found`: there is no such thing, or the caller may not see it").build()),
        (
            "Invalid",
            "422",
            refusal("`invalid`: a field or parameter is not valid or not known; `detail` names it").build(),
        ),
        ("Unavailable", "503", refusal(unavailable).header("Retry-After", seconds).build()),
        ("Refused", "default", refusal("The request failed: `code` names the error, `detail` explains it").build()),
    ]
}

/// Every call can be refused in the same form. The words of a call about its own refusals stay.
fn with_refusals(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let has_subject = path.contains('{');
        for call in operations(item) {
            let has_security = call.security.as_ref().is_some_and(|any| !any.contains(&SecurityRequirement::default()));
            for (name, status, _) in refusals() {
                let is_possible = match status {
                    "401" => has_security,
                    "404" => has_subject,
                    _ => true,
                };
                if is_possible {
                    let refusal = Ref::new(format!("#/components/responses/{name}"));
                    call.responses.responses.entry(status.to_owned()).or_insert(refusal.into());
                }
            }
        }
    }
    let components = document.components.get_or_insert_default();
    components.responses.extend(refusals().map(|(name, _, refusal)| (name.to_owned(), refusal.into())));
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

/// A browser that is signed in may make every call that its key or token may.
fn with_sessions(document: &mut OpenApi) {
    let required = |scheme: &str| SecurityRequirement::new(scheme, [""; 0]);
    let by_token = [required("api_key"), required("admin_token")];
    for item in document.paths.paths.values_mut() {
        for security in operations(item).filter_map(|call| call.security.as_mut()) {
            if by_token.iter().any(|token| security.contains(token)) {
                security.push(required("browser_session"));
            }
        }
    }
}

fn described(mut document: OpenApi) -> OpenApi {
    with_refusals(&mut document);
    with_sessions(&mut document);
    document.info = Info::new("Greenroom", env!("CARGO_PKG_VERSION"));
    let license = env!("CARGO_PKG_LICENSE");
    document.info.license = Some(LicenseBuilder::new().name(license).identifier(Some(license)).build());
    document.servers =
        Some(vec![ServerBuilder::new().url("/").description(Some("The server of this document")).build()]);
    document.info.description = Some(
        "The control plane for meeting bots.\n\nTimes are RFC 3339 in UTC. Durations are in milliseconds. An error is \
         a document of type `application/problem+json`: programs check `code`, people read `detail`, and \
         `request_id` identifies the request in the log of the server."
            .to_owned(),
    );
    document.tags = Some(
        [
            ("For users", "Request bots, and read their state and data. Needs an API key."),
            ("For bots", "Calls of bots, agents and runners. Each needs one of their tokens."),
            ("For operators", "Manage users, keys, bots, pools, slots and keepers. Needs the admin token."),
            ("For everyone", "Sign in with a browser, read health and metrics. Needs no key or token."),
        ]
        .map(|(name, description)| TagBuilder::new().name(name).description(Some(description)).build())
        .to_vec(),
    );
    let bearer = |description: &str| {
        SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(description)).build())
    };
    let components = document.components.get_or_insert_default();
    // A stream has no schema of its own for its messages.
    components.schemas.extend([(StreamedEventDto::name().into_owned(), StreamedEventDto::schema())]);
    components.add_security_scheme("api_key", bearer("The API key of a user, `grk_…`"));
    components.add_security_scheme("x_api_key", SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))));
    components.add_security_scheme("bot_token", bearer("The bot token of one assignment, `grb_…`"));
    components.add_security_scheme("slot_token", bearer("The slot token of the agent in a slot, `grs_…`"));
    components.add_security_scheme("pool_token", bearer("The pool token with which machines register, `grp_…`"));
    components.add_security_scheme("runner_token", bearer("The runner token of one registered runner, `grr_…`"));
    components.add_security_scheme("admin_token", bearer("The admin token"));
    let cookie = ApiKeyValue::with_description(
        browser::COOKIE_NAME,
        "The session of a browser, from `POST /session`. A call that changes something also needs the header `Origin`",
    );
    components.add_security_scheme("browser_session", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    document
}
