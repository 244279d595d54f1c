//! The manifests of Nomad and Kubernetes. Tests have neither. Validators read the files, the server reads the
//! configurations in them, and the tests check what both need of the server.

use std::process::Command;

use yaml_rust2::Yaml;

use super::{binary, read, succeed, yaml};
use crate::support::in_repository;

const KUBERNETES: &str = "deploy/kubernetes/greenroom.yaml";
const NOMAD: &str = "deploy/nomad/greenroom.nomad.hcl";

fn of_kind(kind: &str) -> Yaml {
    let all = yaml(KUBERNETES);
    all.into_iter().find(|one| one["kind"].as_str() == Some(kind)).unwrap_or_else(|| panic!("there is no {kind}"))
}

/// The configuration in the Nomad job, with values in the place of the expressions.
fn configuration_of_nomad() -> String {
    let job = read(NOMAD);
    let (_, text) = job.split_once("destination = \"local/greenroom.toml\"").unwrap();
    let text = text.split_once("<<-END\n").unwrap().1.split_once("END\n").unwrap().0;
    text.replace("{{ env \"attr.unique.network.ip-address\" }}", "10.0.0.1").replace("${var.bot_image}", "bot:1")
}

#[test]
fn the_server_accepts_every_configuration_in_the_folder() {
    let config_map = of_kind("ConfigMap")["data"]["greenroom.toml"].as_str().unwrap().to_owned();
    let files = [
        ("compose", read("deploy/compose/greenroom.toml")),
        ("kubernetes", config_map),
        ("nomad", configuration_of_nomad()),
        ("example", read("greenroom.example.toml")),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(binary("greenroom"));
        command.env_clear().args(["config", "check", "--config"]).arg(&file).current_dir(folder.path());
        if name == "kubernetes" {
            // The manifest takes it from the secret.
            command.env("GREENROOM_POOL__0__COOLIFY__API_TOKEN", "token");
        }
        succeed(&mut command);
    }
}

#[test]
fn kubernetes_asks_the_paths_that_the_server_answers_and_gives_it_no_rights() {
    let deployment = of_kind("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for (probe, path) in [("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"].as_str(), Some(path), "{probe}");
        assert_eq!(container[probe]["httpGet"]["port"].as_str(), Some("http"), "{probe}");
    }
    assert_eq!(container["ports"][0]["containerPort"].as_i64(), Some(7700));
    assert_eq!(deployment["spec"]["replicas"].as_i64(), Some(2));
    assert_eq!(of_kind("PodDisruptionBudget")["spec"]["minAvailable"].as_i64(), Some(1));

    let (of_pod, of_container) = (&pod["securityContext"], &container["securityContext"]);
    assert_eq!(of_pod["runAsNonRoot"].as_bool(), Some(true));
    assert_eq!(of_pod["runAsUser"].as_i64(), Some(65532));
    assert!(read("deploy/Dockerfile").contains("USER 65532:65532"));
    assert_eq!(of_pod["seccompProfile"]["type"].as_str(), Some("RuntimeDefault"));
    assert_eq!(of_container["readOnlyRootFilesystem"].as_bool(), Some(true));
    assert_eq!(of_container["allowPrivilegeEscalation"].as_bool(), Some(false));
    assert_eq!(of_container["capabilities"]["drop"][0].as_str(), Some("ALL"));

    // Every file that a variable names comes from the secret.
    let template = yaml("deploy/kubernetes/secret.example.yaml").remove(0);
    let mount = "/run/secrets/greenroom/";
    let variables = container["env"].as_vec().unwrap();
    let keys: Vec<_> = variables.iter().filter_map(|one| one["value"].as_str()?.strip_prefix(mount)).collect();
    assert_eq!(keys.len(), 3);
    for key in keys {
        assert!(template["stringData"][key].as_str().is_some(), "{key}");
    }
}

fn python(script: &str, arguments: &[&str]) {
    let python = std::env::var("VALIDATORS").expect("VALIDATORS is not set; ./scripts/test installs them and sets it");
    succeed(Command::new(python).args(["-c", script]).args(arguments).current_dir(in_repository("")));
}

#[test]
fn validators_know_every_field_of_the_kubernetes_manifests() {
    let script = "
import sys, yaml, kubernetes_validate
for path in sys.argv[1:]:
    for document in yaml.safe_load_all(open(path)):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
";
    python(script, &[KUBERNETES, "deploy/kubernetes/secret.example.yaml"]);
}

#[test]
fn validators_read_the_nomad_job_and_find_its_health_check_and_its_files() {
    let script = r#"
import sys, hcl2
def plain(value):
    if isinstance(value, dict): return {key.strip('"'): plain(inner) for key, inner in value.items()}
    if isinstance(value, list): return [plain(inner) for inner in value]
    return value.strip('"') if isinstance(value, str) else value
def one(value): return value[0] if isinstance(value, list) else value
job = one(plain(hcl2.load(open(sys.argv[1])))["job"])["greenroom"]
group = one(job["group"])["server"]
task = one(group["task"])["greenroom"]
assert group["count"] == 2
assert one(one(group["service"])["check"])["path"] == "/readyz"
assert one(one(group["network"])["port"])["http"]["to"] == 7700
assert task["user"] == "65532"
assert [template["destination"] for template in task["template"]] == ["local/greenroom.toml", "secrets/greenroom.env"]
"#;
    python(script, &[NOMAD]);
}
