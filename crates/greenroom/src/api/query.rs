//! Query parameters that a call does not know are refused, on every path: one that is misspelt would otherwise be left
//! out in silence. What a call knows is what the OpenAPI document says of it.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use axum::extract::Query;
use axum::http::{Method, Uri};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::problem::Problem;

/// By path and method.
type Known = HashMap<(String, Method), HashSet<String>>;

static KNOWN: LazyLock<Known> = LazyLock::new(|| known(&super::document()));

fn known(document: &OpenApi) -> Known {
    let mut known = Known::new();
    for (path, item) in &document.paths.paths {
        let calls = [
            (Method::GET, &item.get),
            (Method::HEAD, &item.get),
            (Method::PUT, &item.put),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
            (Method::PATCH, &item.patch),
        ];
        for (method, call) in calls {
            if let Some(call) = call {
                known.insert((path.clone(), method), names(call));
            }
        }
    }
    known
}

fn names(call: &Operation) -> HashSet<String> {
    let parameters = call.parameters.iter().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) => Some(parameter),
        RefOr::Ref(_) => None,
    });
    parameters.filter(|one| one.parameter_in == ParameterIn::Query).map(|one| one.name.clone()).collect()
}

/// Refuses a parameter that this call does not know. One that is documented as `name.KEY` stands for every key.
pub fn refuse_unknown(method: &Method, route: &str, uri: &Uri) -> Result<(), Problem> {
    if uri.query().is_none_or(str::is_empty) {
        return Ok(());
    }
    let Some(known) = KNOWN.get(&(route.to_owned(), method.clone())) else { return Ok(()) };
    let Ok(Query(sent)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
        return Err(Problem::invalid("query", "cannot be read"));
    };
    let is_known = |name: &str| {
        let open = name.split_once('.').map(|(before, _)| format!("{before}.KEY"));
        known.contains(name) || open.is_some_and(|open| known.contains(&open))
    };
    // PostgreSQL cannot store or compare it.
    if let Some((name, _)) = sent.iter().find(|(name, value)| is_known(name) && value.contains('\0')) {
        return Err(Problem::invalid(name, "contains a NUL character"));
    }
    match sent.iter().find(|(name, _)| !is_known(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let name: String = name.chars().take(100).collect();
            let mut all: Vec<&str> = known.iter().map(String::as_str).collect();
            all.sort_unstable();
            let why = match all.as_slice() {
                [] => "is unknown; this call has no parameters".to_owned(),
                all => format!("is unknown; the parameters of this call are {}", all.join(", ")),
            };
            Err(Problem::invalid(&name, why))
        }
    }
}
