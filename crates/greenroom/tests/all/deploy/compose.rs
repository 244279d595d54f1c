//! `deploy/compose` without images of others: PostgreSQL, Redis and HAProxy from Debian's packages, two servers as
//! processes, bots as containers. Configuration, environment and secrets are those of compose. Only addresses differ.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bollard::models::NetworkCreateRequest;
use serde_json::json;
use sqlx::Connection;
use yaml_rust2::Yaml;

use super::{image, read, succeed, yaml};
use crate::support::{
    Client, Engine, PrivatePostgres, Process, any_port, docker_gateway, found, in_repository, meet_link,
};

/// A program that ends with the test.
struct Service(Child);

impl Service {
    fn start(program: &str, arguments: &[&str], folder: &Path) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]).args(arguments).current_dir(folder);
        let log = fs::File::create(folder.join("log")).unwrap();
        command.stdin(Stdio::null()).stderr(log.try_clone().unwrap()).stdout(log);
        Self(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn secret(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Replaces a part that must be there.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "`{from}` is not in: {text}");
    text.replace(from, to)
}

/// The environment of the service `greenroom`, with the files in other folders.
fn environment(compose: &Yaml, secrets: &Path, config: &Path) -> Vec<(String, String)> {
    let variables = compose["services"]["greenroom"]["environment"].as_hash().unwrap();
    let named = variables.iter().map(|(name, value)| {
        let value = value.as_str().unwrap().replace("/run/secrets", secrets.to_str().unwrap());
        let value = value.replace("/etc/greenroom/greenroom.toml", config.to_str().unwrap());
        assert!(Path::new(&value).exists(), "{value}");
        (name.as_str().unwrap().to_owned(), value)
    });
    named.collect()
}

async fn start_server(folder: &Path, environment: &[(String, String)]) -> (Process, u16) {
    found("a port is free", async || {
        let port = any_port();
        let mut command = Process::command();
        command.arg("serve").envs(environment.iter().cloned()).current_dir(folder);
        command.env("GREENROOM_LISTEN", format!("127.0.0.1:{port}"));
        Process::try_spawn(command).await.ok().map(|server| (server, port))
    })
    .await
}

/// Redis with the configuration of compose, on a free port.
async fn start_redis(folder: &Path, secrets: &Path) -> (Service, u16) {
    let config = secrets.join("redis_config");
    let pid = folder.join("pid");
    found("Redis has a port", async || {
        let _ = fs::remove_file(&pid);
        let port = any_port().to_string();
        let arguments = [config.to_str().unwrap(), "--port", &port, "--bind", "127.0.0.1", "--pidfile", "pid"];
        let mut redis = Service::start(&std::env::var("REDIS_SERVER").unwrap(), &arguments, folder);
        let serves = found("Redis serves, or ends", async || {
            let has_ended = redis.0.try_wait().unwrap().is_some();
            if has_ended { Some(false) } else { fs::metadata(&pid).is_ok_and(|file| file.len() > 0).then_some(true) }
        });
        serves.await.then(|| (redis, port.parse().unwrap()))
    })
    .await
}

/// HAProxy with the configuration of compose, at an address that containers reach.
async fn start_proxy(folder: &Path, port: u16, replicas: &[u16]) -> Service {
    let text = read("deploy/compose/haproxy.cfg");
    let template = text.lines().find(|line| line.trim_start().starts_with("server-template")).unwrap();
    let servers: Vec<_> = replicas.iter().map(|port| format!("    server replica{port} 127.0.0.1:{port}")).collect();
    let text = replaced(&text, template, &servers.join("\n"));
    let text = replaced(&text, "bind :7700", &format!("bind {}:{port}", docker_gateway()));
    let file = folder.join("haproxy.cfg");
    fs::write(&file, text).unwrap();
    let haproxy = std::env::var("HAPROXY").unwrap_or_else(|_| "haproxy".to_owned());
    succeed(Command::new(&haproxy).args(["-c", "-f"]).arg(&file));
    let mut proxy = Service::start(&haproxy, &["-db", "-f", "haproxy.cfg"], folder);
    found("the proxy answers", async || {
        assert!(proxy.0.try_wait().unwrap().is_none(), "{}", fs::read_to_string(folder.join("log")).unwrap());
        let answer = reqwest::get(format!("http://{}:{port}/readyz", docker_gateway())).await.ok()?;
        answer.status().is_success().then_some(())
    })
    .await;
    proxy
}

fn folder(parent: &Path, name: &str) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir(&path).unwrap();
    path
}

#[tokio::test]
async fn the_services_of_compose_run_a_bot_on_postgres_redis_haproxy_and_docker() {
    let compose = yaml("deploy/compose/compose.yaml").remove(0);
    let home = tempfile::tempdir().unwrap();
    let (secrets, home) = (home.path().join("secrets"), home.path());
    succeed(Command::new(in_repository("deploy/compose/make-secrets")).arg(&secrets));

    // PostgreSQL, with the user and the database that its image would make.
    let postgres = PrivatePostgres::start().await;
    let mut connection = sqlx::PgConnection::connect(&postgres.url()).await.unwrap();
    let of_postgres = &compose["services"]["postgres"]["environment"];
    let (user, database) =
        (of_postgres["POSTGRES_USER"].as_str().unwrap(), of_postgres["POSTGRES_DB"].as_str().unwrap());
    let password = secret(&secrets, "postgres_password");
    for sql in
        [format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'"), format!("CREATE DATABASE {database} OWNER {user}")]
    {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
    let address = postgres.url().rsplit_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    let url = replaced(&secret(&secrets, "database_url"), "postgres:5432", &address);
    fs::write(secrets.join("database_url"), url).unwrap();

    let (_redis, port) = start_redis(&folder(home, "redis"), &secrets).await;
    let url = replaced(&secret(&secrets, "redis_url"), "redis:6379", &format!("127.0.0.1:{port}"));
    fs::write(secrets.join("redis_url"), url).unwrap();

    // The engine, with the network of the bots and the image that the configuration names.
    let engine = Engine::shared().await;
    let toml = read("deploy/compose/greenroom.toml");
    let pool: toml::Table = toml.parse().unwrap();
    let docker = &pool["pool"][0]["docker"];
    let network = docker["network"].as_str().unwrap().to_owned();
    assert_eq!(compose["networks"]["bots"]["name"].as_str(), Some(network.as_str()));
    let request = NetworkCreateRequest { name: network, ..NetworkCreateRequest::default() };
    engine.docker.create_network(request).await.unwrap();
    image::build(&engine, "demo-bot", docker["image"].as_str().unwrap()).await;

    // Two servers behind the proxy.
    let proxy = any_port();
    let url = format!("http://{}:{proxy}", docker_gateway());
    let toml = replaced(&toml, "http://proxy:7700", &url);
    let toml = replaced(&toml, "unix:///var/run/docker.sock", &engine.host);
    let config = home.join("greenroom.toml");
    fs::write(&config, toml).unwrap();
    let environment = environment(&compose, &secrets, &config);
    let (first, first_port) = start_server(&folder(home, "first"), &environment).await;
    let (_second, second_port) = start_server(&folder(home, "second"), &environment).await;
    let _proxy = start_proxy(&folder(home, "proxy"), proxy, &[first_port, second_port]).await;

    let admin = Client::anywhere(&url, &secret(&secrets, "admin_token"));
    let installation = {
        let sql = "SELECT value FROM settings WHERE name = 'installation'";
        let database = secret(&secrets, "database_url");
        let mut connection = sqlx::PgConnection::connect(&database).await.unwrap();
        sqlx::query_scalar::<_, String>(sql).fetch_one(&mut connection).await.unwrap()
    };
    let _slots = engine.labelled(&format!("greenroom.installation={installation}"));
    let ready = admin.get("/readyz").await;
    assert_eq!(ready["bus"], "ok", "{ready}");

    let user = admin.user(10).await;
    let request = json!({"meeting_url": meet_link(1), "config": {"demo_ms": 600_000}});
    let bot = user.ask(request).await["id"].as_str().unwrap().to_owned();
    user.until(&bot, "active").await;
    // One replica stops, as in an upgrade. Nobody notices.
    first.terminate().await;
    assert!(first.wait().await);
    assert_eq!(user.show_bot(&bot).await["status"], "active");
    user.stop(&bot).await;
    let ended = user.until(&bot, "completed").await;
    assert_eq!(ended["reason"], "stopped", "{ended}");
}

#[test]
fn compose_hands_out_only_secrets_that_make_secrets_writes() {
    let compose = yaml("deploy/compose/compose.yaml").remove(0);
    let folder = tempfile::tempdir().unwrap();
    succeed(Command::new(in_repository("deploy/compose/make-secrets")).arg(folder.path()));
    let mut written: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    written.sort();
    let declared = compose["secrets"].as_hash().unwrap();
    let declared: Vec<_> = declared.keys().map(|name| name.as_str().unwrap().to_owned()).collect();
    assert_eq!(written, declared);
    let before = secret(folder.path(), "admin_token");
    succeed(Command::new(in_repository("deploy/compose/make-secrets")).arg(folder.path()));
    assert_eq!(secret(folder.path(), "admin_token"), before, "a second run keeps the secrets");
    for (name, service) in compose["services"].as_hash().unwrap() {
        for used in service["secrets"].as_vec().into_iter().flatten() {
            assert!(declared.contains(&used.as_str().unwrap().to_owned()), "{name:?}: {used:?}");
        }
        assert_eq!(service["restart"].as_str(), Some("unless-stopped"), "{name:?}");
    }
}
