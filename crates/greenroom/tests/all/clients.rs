//! The clients in `clients/`: their own tests, and scenarios that each runs against a real server. The scenarios of both
//! are the same.

use std::path::{Path, PathBuf};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::dashboard::Scenario;
use crate::support::{ADMIN_TOKEN, Backend, Database, Process, Relay, in_repository, meet_link};

/// The program of a tool, which `./scripts/test` installed.
pub fn node_tool(name: &str) -> String {
    let packages = std::env::var("TEST_NODE_PACKAGES").expect("./scripts/test sets TEST_NODE_PACKAGES");
    format!("{packages}/node_modules/.bin/{name}")
}

/// The Python with the packages that `./scripts/test` installed.
pub fn python() -> PathBuf {
    std::env::var_os("TEST_PYTHON").expect("./scripts/test sets TEST_PYTHON").into()
}

/// Runs a command that must succeed, and returns what it printed.
pub async fn run(command: &mut Command) -> String {
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).join("\n");
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    Node,
}

impl Language {
    /// The name of a scenario, as its file is called.
    fn scenario(self, name: &str, folder: &Path) -> Command {
        match self {
            Self::Python => {
                let mut command = in_python_client(&folder.join("cache"));
                command.arg(format!("tests/scenario_{}.py", name.replace('-', "_")));
                command
            }
            Self::Node => {
                let mut command = Command::new("node");
                command.arg(in_repository(&format!("clients/typescript/tests/scenario-{name}.js")));
                command.env("GREENROOM_DIST", folder.join("dist"));
                command
            }
        }
    }

    /// Makes what the scenarios need.
    async fn prepare(self, folder: &Path) {
        if let Self::Node = self {
            compile_node_client(folder).await;
        }
    }
}

/// Python in the folder of its client. It writes nothing into the repository.
fn in_python_client(cache: &Path) -> Command {
    let mut command = Command::new(python());
    command.current_dir(in_repository("clients/python")).env("PYTHONPATH", "src").env("PYTHONPYCACHEPREFIX", cache);
    command
}

/// Compiles the client for Node.js into `folder`.
async fn compile_node_client(folder: &Path) {
    let project = in_repository("clients/typescript");
    run(Command::new(node_tool("tsc")).arg("--project").arg(project).arg("--outDir").arg(folder.join("dist"))).await;
    // Node.js takes the files for ES modules because of this one.
    std::fs::write(folder.join("package.json"), r#"{"type": "module"}"#).unwrap();
}

/// Starts a server with the demo pools, and a user with this limit of bots. Returns the settings of a scenario.
async fn served(limit: i64) -> (Database, Process, Value) {
    let database = Database::new(Backend::Sqlite).await;
    let server = serve(&database, "127.0.0.1:0").await;
    let user = server.admin().user(limit).await;
    let settings = json!({
        "url": server.url, "api_key": user.token(), "link": meet_link(0), "other_link": meet_link(1),
    });
    (database, server, settings)
}

async fn serve(database: &Database, address: &str) -> Process {
    let admin_token = format!("admin_token={ADMIN_TOKEN}");
    Process::start_listening(database, address, &["--set", &admin_token]).await
}

#[rstest]
#[case::python_client(Language::Python)]
#[case::node_client(Language::Node)]
#[tokio::test]
async fn a_bot_is_started_followed_over_a_restart_of_the_server_and_stopped(#[case] language: Language) {
    let folder = tempfile::tempdir().unwrap();
    language.prepare(folder.path()).await;
    let (database, server, settings) = served(2).await;
    let mut scenario = Scenario::spawn(language.scenario("bot-life", folder.path()), &settings);
    scenario.reaches("the server is to be restarted").await;
    let address = server.url.trim_start_matches("http://").to_owned();
    server.kill().await;
    let _server = serve(&database, &address).await;
    scenario.goes_on("").await;
    scenario.passes().await;
}

#[rstest]
#[case::python_client(Language::Python)]
#[case::node_client(Language::Node)]
#[tokio::test]
async fn a_transcript_is_followed_until_the_bot_ends(#[case] language: Language) {
    let folder = tempfile::tempdir().unwrap();
    language.prepare(folder.path()).await;
    let (_database, _server, settings) = served(2).await;
    Scenario::spawn(language.scenario("transcript", folder.path()), &settings).passes().await;
}

#[rstest]
#[case::python_client(Language::Python)]
#[case::node_client(Language::Node)]
#[tokio::test]
async fn refusals_are_errors_that_say_why(#[case] language: Language) {
    let folder = tempfile::tempdir().unwrap();
    language.prepare(folder.path()).await;
    let (_database, _server, settings) = served(1).await;
    Scenario::spawn(language.scenario("refusals", folder.path()), &settings).passes().await;
}

#[rstest]
#[case::python_client(Language::Python)]
#[case::node_client(Language::Node)]
#[tokio::test]
async fn a_lost_answer_makes_no_second_bot(#[case] language: Language) {
    let folder = tempfile::tempdir().unwrap();
    language.prepare(folder.path()).await;
    let (_database, server, mut settings) = served(2).await;
    let relay = Relay::to_url(&server.url).await;
    settings["url"] = json!(format!("http://{}", relay.address));
    let mut scenario = Scenario::spawn(language.scenario("lost-answer", folder.path()), &settings);
    for _ in 0..2 {
        scenario.reaches("the next answer is to be lost").await;
        relay.lose(1);
        scenario.goes_on("").await;
    }
    scenario.passes().await;
    assert!(relay.lost_all(), "the answers were lost");
}

#[tokio::test]
async fn the_python_client_is_typed_and_passes_its_own_tests() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    run(in_python_client(&cache).args(["-m", "unittest", "discover", "--start-directory", "tests"])).await;
    run(in_python_client(&cache).args(["-m", "mypy", "--cache-dir"]).arg(folder.path())).await;
    run(in_python_client(&cache).args(["-m", "ruff", "check", "--no-cache", "."])).await;
    run(in_python_client(&cache).args(["scripts/generate_models.py", "--check"])).await;
}

#[tokio::test]
async fn the_node_client_is_typed_and_passes_its_own_tests() {
    let folder = tempfile::tempdir().unwrap();
    compile_node_client(folder.path()).await;
    let project = in_repository("clients/typescript").canonicalize().unwrap();
    let tests = project.join("tests/client.test.js");
    run(Command::new("node").arg("--test").arg(tests).env("GREENROOM_DIST", folder.path().join("dist"))).await;
    run(Command::new("node").arg(project.join("scripts/generate-schema.js")).arg("--check")).await;
    // The example finds the client as its users would.
    let settings = json!({
        "extends": project.join("tsconfig.json"),
        "compilerOptions": {
            "noEmit": true, "rootDir": "/", "paths": {"greenroom": [folder.path().join("dist/index.d.ts")]},
            "module": "esnext", "moduleResolution": "bundler",
        },
        "include": [project.join("examples/*.ts")],
    });
    std::fs::write(folder.path().join("tsconfig.json"), settings.to_string()).unwrap();
    run(Command::new(node_tool("tsc")).arg("--project").arg(folder.path())).await;
}

#[tokio::test]
async fn redocly_and_openapi_typescript_accept_the_openapi_document_with_node() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join("openapi.json");
    std::fs::write(&document, greenroom::api::document().to_json().unwrap()).unwrap();
    let config = in_repository("clients/redocly.yaml");
    let mut redocly = Command::new(node_tool("redocly"));
    redocly.arg("lint").arg("--config").arg(config).args(["--format", "json"]).arg(&document);
    redocly.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
    let report = run(&mut redocly).await;
    let report = &report[report.find('{').expect("a report")..=report.rfind('}').expect("a report")];
    let report: Value = serde_json::from_str(report).unwrap();
    // Warnings count too.
    assert_eq!(report["problems"], json!([]));
    run(Command::new(node_tool("openapi-typescript"))
        .arg(&document)
        .arg("--output")
        .arg(folder.path().join("api.d.ts")))
    .await;
}

#[tokio::test]
async fn openapi_python_client_makes_a_client_that_mypy_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name);
    std::fs::write(in_folder("openapi.json"), greenroom::api::document().to_json().unwrap()).unwrap();
    // What the tool runs at its end would reformat the client, by the rules of other versions.
    std::fs::write(in_folder("config.yaml"), "post_hooks: []\n").unwrap();
    let mut generate = Command::new(python());
    generate
        .args(["-m", "openapi_python_client", "generate", "--path"])
        .arg(in_folder("openapi.json"))
        .arg("--config")
        .arg(in_folder("config.yaml"));
    generate.args(["--meta", "none", "--output-path"]).arg(in_folder("greenroom_api")).current_dir(folder.path());
    let said = run(&mut generate).await;
    // The tool knows no images. It leaves out their two calls, and nothing else.
    let warnings: Vec<_> = said.lines().filter(|line| line.starts_with("WARNING")).collect();
    assert!(warnings.iter().all(|line| line.contains("/screenshot")), "{said}");
    run(Command::new(python())
        .args(["-m", "mypy", "--strict", "--cache-dir"])
        .arg(in_folder("cache"))
        .arg("greenroom_api")
        .current_dir(folder.path()))
    .await;
}
