//! For everyone: the OpenAPI document, made from the code, and a page that shows it without anything from elsewhere.

use axum::Extension;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Redirect, Response};

use super::compression::Unchanging;
use super::problem::Problem;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'";

fn page(name: &'static str, kind: &'static str, text: &'static str) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache"), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, Extension(Unchanging(name)), text).into_response()
}

pub async fn index() -> Response {
    page("docs/index.html", "text/html; charset=utf-8", include_str!("docs_page/index.html"))
}

pub async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, Problem> {
    let Path(name) = name.map_err(|_| Problem::not_found("page"))?;
    let script = "text/javascript; charset=utf-8";
    match name.as_str() {
        "docs.css" => Ok(page("docs/docs.css", "text/css; charset=utf-8", include_str!("docs_page/docs.css"))),
        "docs.js" => Ok(page("docs/docs.js", script, include_str!("docs_page/docs.js"))),
        "schema.js" => Ok(page("docs/schema.js", script, include_str!("docs_page/schema.js"))),
        "tryit.js" => Ok(page("docs/tryit.js", script, include_str!("docs_page/tryit.js"))),
        _ => Err(Problem::not_found("page")),
    }
}

/// Until there is more to see at the root, it leads to the documentation.
pub async fn root() -> Redirect {
    Redirect::temporary("/docs")
}
