//! Documents that are generated from the code agree with the code: the OpenAPI document, the table of the lifecycle,
//! the page.

use std::collections::BTreeSet;

use crate::support::{Backend, Database, Process, in_repository};

/// Compares a tracked file with the generated text, between two marker lines if there are any. With `UPDATE=1`, it
/// writes the file instead, for review in the diff.
pub fn compare(path: &str, made: &str) {
    let file = in_repository(path);
    let tracked = std::fs::read_to_string(&file).unwrap_or_default();
    let (begin, end) = ("<!-- made from the code: begin -->\n", "<!-- made from the code: end -->");
    let expected = match (tracked.split_once(begin), tracked.split_once(end)) {
        (Some((before, _)), Some((_, after))) => format!("{before}{begin}{made}{end}{after}"),
        _ => made.to_owned(),
    };
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &expected).unwrap();
    } else {
        assert!(tracked == expected, "{path} differs from the code; UPDATE=1 ./scripts/test documents writes it");
    }
}

#[test]
fn the_openapi_document_is_the_reviewed_one() {
    compare("docs/openapi.json", &format!("{}\n", greenroom::api::document().to_pretty_json().unwrap()));
}

#[test]
fn the_table_of_the_lifecycle_in_the_docs_is_the_one_in_the_code() {
    compare("docs/lifecycle.md", &domain::lifecycle::render::markdown());
}

#[test]
fn the_metrics_in_the_docs_are_those_of_the_code() {
    compare("docs/metrics.md", &greenroom::telemetry::catalog::markdown());
}

#[test]
fn the_reference_of_the_command_line_in_the_docs_is_the_one_in_the_code() {
    compare("docs/cli.md", &greenroom::cli::reference());
}

/// The files that handle a request for a bot, in order. Those of `planner/` are in `crates/domain/src`.
const WAY_OF_A_REQUEST: [(&str, &str); 21] = [
    ("greenroom/src/placement/mod.rs", "makes a job of the request and hands it to the placer"),
    ("greenroom/src/placement/message.rs", "what is handed over: a job, and where its answer goes"),
    ("greenroom/src/placement/placer.rs", "gathers jobs, has them planned and written, answers"),
    ("greenroom/src/placement/batch.rs", "jobs that are planned together"),
    ("greenroom/src/placement/snapshot_cache.rs", "brings the snapshot up to date"),
    ("planner/job.rs", "the jobs, and their answers"),
    ("planner/mod.rs", "`plan`: jobs one after the other, then the queues"),
    ("planner/commands/reserve.rs", "admits the bot: API key, pools, priority; puts it into the queue"),
    ("planner/idempotency.rs", "finds the bot of an earlier request with the same idempotency key"),
    ("planner/bot_limit.rs", "checks the limit, and that the user has no other bot in the meeting"),
    ("planner/assign.rs", "serves the queue"),
    ("planner/draft/", "the snapshot with what was decided so far; the best free slot"),
    ("planner/changes.rs", "what is to be written, and what is to be done after that"),
    ("store/src/fence.rs", "what the journal tells other replicas"),
    ("store/src/changed/", "the rows of each table, and the text that writes them"),
    ("store/src/columns.rs", "these rows as arrays of columns"),
    ("store/src/row_locations.rs", "where PostgreSQL put the rows that it wrote last"),
    ("store/src/batch_write.rs", "writes them in one call, if the token is current"),
    ("planner/snapshot.rs", "takes over what was written"),
    ("greenroom/src/signals/mod.rs", "carries out the actions: wake an agent, pass the gate, …"),
    ("greenroom/src/placement/answer.rs", "answers, on another thread"),
];

fn lines_of(path: &std::path::Path) -> usize {
    if !path.is_dir() {
        return std::fs::read_to_string(path).unwrap().lines().count();
    }
    std::fs::read_dir(path).unwrap().map(|entry| lines_of(&entry.unwrap().path())).sum()
}

#[test]
fn the_path_of_a_request_in_the_docs_names_existing_files_with_their_sizes() {
    let mut table = "| file | lines | does |\n|---|---|---|\n".to_owned();
    for (file, does) in WAY_OF_A_REQUEST {
        let folder = if file.starts_with("planner/") { "crates/domain/src" } else { "crates" };
        let lines = lines_of(&in_repository(&format!("{folder}/{file}")));
        table.push_str(&format!("| `{file}` | {lines} | {does} |\n"));
    }
    compare("docs/planner.md", &table);
}

#[test]
fn every_operation_of_the_openapi_document_has_a_summary_a_tag_and_an_answer() {
    let document = serde_json::to_value(greenroom::api::document()).unwrap();
    let (mut calls, mut ids) = (0, BTreeSet::new());
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, call) in item.as_object().unwrap() {
            calls += 1;
            for field in ["summary", "operationId"] {
                assert!(call[field].as_str().is_some_and(|text| !text.is_empty()), "{method} {path} has no {field}");
            }
            // Generated clients make a function of each.
            assert!(ids.insert(call["operationId"].to_string()), "{method} {path} has the id of another call");
            assert!(call["tags"].as_array().is_some_and(|tags| tags.len() == 1), "{method} {path}");
            assert!(call["responses"].as_object().is_some_and(|all| !all.is_empty()), "{method} {path}");
            // Calls for everyone need nothing, or the session of a browser.
            let security = call["security"].as_array().unwrap_or_else(|| panic!("{method} {path} has no security"));
            let open = [serde_json::json!({}), serde_json::json!({"browser_session": []})];
            let is_open = security.iter().all(|scheme| open.contains(scheme));
            assert_eq!(is_open, call["tags"][0] == "For everyone", "{method} {path}");
            let needed: &[&str] = if security.contains(&open[0]) { &[] } else { &["401"] };
            for status in ["422", "503", "default"].iter().chain(needed) {
                assert!(!call["responses"][status].is_null(), "{method} {path} has no {status}");
            }
        }
    }
    assert!(calls > 30, "the document has {calls} calls");
}

/// Of two types with the same name in the document, one silently replaces the other.
#[test]
fn every_schema_of_the_openapi_document_has_its_own_name() {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(in_repository("crates/greenroom/src/api")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for given in text.split("#[schema(as = ").skip(1) {
            let name = given.split([')', ',']).next().unwrap().to_owned();
            assert!(names.insert(name.clone()), "{name} is given twice, the second time in {}", path.display());
        }
    }
    assert!(names.len() > 10, "{names:?}");
}

/// The schemas that a part of the document refers to, with those that they refer to.
fn referred<'a>(document: &'a serde_json::Value, part: &'a serde_json::Value, found: &mut Vec<&'a str>) {
    match part {
        serde_json::Value::Array(parts) => parts.iter().for_each(|part| referred(document, part, found)),
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, part)| match part.as_str() {
            Some(path) if name == "$ref" => {
                let name = path.rsplit('/').next().unwrap();
                if path.starts_with("#/components/schemas/") && !found.contains(&name) {
                    found.push(name);
                    referred(document, &document["components"]["schemas"][name], found);
                }
            }
            _ => referred(document, part, found),
        }),
        _ => {}
    }
}

/// Generated clients know then which fields they can rely on: one is there and may be `null`, or it may be missing.
#[test]
fn a_field_of_an_answer_is_required_if_it_can_be_null() {
    let document = serde_json::to_value(greenroom::api::document()).unwrap();
    let (mut answers, mut nullable) = (vec!["StreamedEvent"], 0);
    for item in document["paths"].as_object().unwrap().values() {
        item.as_object().unwrap().values().for_each(|call| referred(&document, &call["responses"], &mut answers));
    }
    for name in answers {
        let schema = &document["components"]["schemas"][name];
        let objects = schema["allOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
        for object in objects {
            for (field, value) in object["properties"].as_object().into_iter().flatten() {
                let required = object["required"].as_array().is_some_and(|all| all.iter().any(|one| one == field));
                let is_null = |kind: &serde_json::Value| kind == "null" || kind["type"] == "null";
                let kinds = value["type"].as_array().or_else(|| value["oneOf"].as_array());
                let can_be_null = kinds.is_some_and(|kinds| kinds.iter().any(is_null));
                nullable += usize::from(can_be_null);
                assert!(required || !can_be_null, "{name}.{field} can be null and missing");
            }
        }
    }
    assert!(nullable > 50, "{nullable} fields of answers can be null");
}

#[test]
fn the_enums_of_the_openapi_document_are_those_of_the_code() {
    let document = serde_json::to_value(greenroom::api::document()).unwrap();
    let words = |schema: &str| -> BTreeSet<&str> {
        let words = document["components"]["schemas"][schema]["enum"].as_array().unwrap();
        words.iter().map(|word| word.as_str().unwrap()).collect()
    };
    assert_eq!(words("Status"), domain::ShownStatus::ALL.map(|status| status.as_str()).into());
    assert_eq!(words("AuditAction"), domain::AuditAction::ALL.map(|action| action.as_str()).into());
    assert_eq!(words("Platform"), domain::Platform::ALL.map(|platform| platform.as_str()).into());
    assert_eq!(words("SlotStatus"), domain::SlotStatus::ALL.map(|status| status.as_str()).into());
    assert_eq!(words("ProviderKind"), domain::ProviderKind::ALL.map(|kind| kind.as_str()).into());
    assert_eq!(words("Fault"), domain::Fault::ALL.map(|fault| fault.as_str()).into());
    assert_eq!(words("CommandAction"), domain::Action::ALL.map(|action| action.as_str()).into());
    assert_eq!(words("UsageClass"), domain::UsageClass::ALL.map(|class| class.as_str()).into());
    assert_eq!(words("EventKind"), domain::event::Kind::ALL.map(|kind| kind.as_str()).into());
    assert_eq!(words("Actor"), domain::event::Actor::ALL.map(|actor| actor.as_str()).into());
}

#[tokio::test]
async fn the_page_shows_every_call_in_chromium_without_anything_from_elsewhere() {
    let chromium = std::env::var("CHROMIUM").expect("CHROMIUM is not set; ./scripts/test finds it and sets it");
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let profile = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"])
        // Chromium can resolve no name except this machine's own. So a page that needs another host fails.
        .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("{}/docs", server.url))
        .output()
        .await
        .unwrap();
    let page = String::from_utf8_lossy(&output.stdout);
    assert!(page.contains("data-ready=\"true\""), "{page}\n{}", String::from_utf8_lossy(&output.stderr));
    let document = serde_json::to_value(greenroom::api::document()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            assert!(page.contains(&format!("id=\"{method}-{path}\"")), "{method} {path} is not on the page");
        }
    }
}
