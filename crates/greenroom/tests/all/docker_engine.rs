//! Tests of the Docker test support. If they fail, other tests fail too, without a fault of the server.

use rstest::rstest;
use serde_json::json;

use crate::support::{
    Backend, Database, Engine, Labelled, Process, Recipe, Registry, docker_gateway, meet_link, until,
};

#[tokio::test]
async fn a_script_runs_in_a_docker_container() {
    let engine = Engine::shared().await;
    let labelled = engine.unique_label();
    let image = engine.image(&Recipe::script("echo it runs; exit 3")).await;
    let container = engine.run(&image, &labelled, &[]).await;
    assert_eq!(engine.exit_code(&container).await, 3);
    assert_eq!(engine.log_of(&container).await, "it runs\n");
}

const BOT: &str = r#"
    echo '{"event": "joined"}'
    while read line; do case "$line" in *leave*) exit 0;; esac; done
"#;

#[rstest]
#[case::that_is_a_script(Recipe::bot(BOT))]
#[case::of_the_demo(Recipe::demo_bot())]
#[tokio::test]
async fn a_bot_in_a_docker_container_reaches_the_server_under_test(#[case] recipe: Recipe) {
    let database = Database::new(Backend::Sqlite).await;
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\n\
                process = { command = [\"true\"] }\n";
    let server = Process::start_for_containers(&database, pool).await;
    assert!(server.url.starts_with(&format!("http://{}:", docker_gateway())), "{}", server.url);
    let user = server.admin().user(1).await;
    let bot = user.bot(&meet_link(1)).await;
    let (_, data) = server.admin().post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;

    let engine = Engine::shared().await;
    let labelled = engine.unique_label();
    let image = engine.image(&recipe).await;
    let container = engine.run(&image, &labelled, &[format!("BOT_DATA={data}")]).await;
    user.until(&bot, "active").await;
    user.stop(&bot).await;
    assert_eq!(engine.exit_code(&container).await, 0);
    user.until(&bot, "completed").await;
}

#[tokio::test]
async fn a_docker_health_check_that_fails_is_seen() {
    let engine = Engine::shared().await;
    let labelled = engine.unique_label();
    let recipe = Recipe::script("sleep 1000").with_health_check(100, "exit 1");
    let container = engine.run(&engine.image(&recipe).await, &labelled, &[]).await;
    until("the container is unhealthy", async || {
        let state = engine.docker.inspect_container(&container, None).await.unwrap().state.unwrap();
        state.health.unwrap().status == Some(bollard::models::HealthStatusEnum::UNHEALTHY)
    })
    .await;
}

#[tokio::test]
async fn a_pull_by_docker_from_the_registry_is_counted_once() {
    let (engine, registry) = (Engine::shared().await, Registry::shared());
    let image = engine.image(&Recipe::script("exit 0")).await;
    let name = registry.push(&engine, &image).await;
    assert!(!engine.has_image(&name).await);
    assert_eq!(registry.pulls(&name), 0);
    engine.pull(&name).await.unwrap();
    assert!(engine.has_image(&name).await);
    until("the registry has logged it", async || registry.pulls(&name) > 0).await;
    engine.pull(&name).await.unwrap();
    assert_eq!(registry.pulls(&name), 1);
    assert_eq!(registry.fetches(&name), 0, "the engine had the layer under another name");
}

async fn fail(engine: Engine, labelled: Labelled, image: String) {
    engine.run(&image, &labelled, &[]).await;
    assert_eq!(labelled.running().await.len(), 2);
}

#[tokio::test]
async fn resources_of_a_test_in_docker_are_removed_even_if_it_fails() {
    let engine = Engine::shared().await;
    let labelled = engine.unique_label();
    let (name, value) = labelled.label();
    let image = engine.image(&Recipe::script("sleep 1000")).await;
    let failed = tokio::spawn(fail(engine.clone(), labelled, image));
    assert!(failed.await.is_err());
    assert_eq!(engine.labelled(&format!("{name}={value}")).containers().await, []);
}
