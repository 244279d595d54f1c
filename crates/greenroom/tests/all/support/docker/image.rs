//! Images for tests. Tests cannot pull images from the internet. So they build them from files of this machine: the
//! binary under test and a shell, with their libraries.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::TryStreamExt;
use sha2::{Digest, Sha256};

use super::{Engine, shared_folder};

/// The programs that a script needs.
const SHELL: [&str; 3] = ["/bin/sh", "/bin/sleep", "/bin/cat"];

/// The contents of an image. Two equal recipes make one image.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Whether the image contains `greenroom`, which adds about 40 MB.
    has_greenroom: bool,
    changes: Vec<String>,
}

impl Recipe {
    /// The agent, and the demo bot as its bot.
    pub fn demo_bot() -> Self {
        Self { has_greenroom: true, changes: Vec::new() }.with(&entry_point(&[
            "/bin/greenroom",
            "agent",
            "--",
            "/bin/greenroom",
            "demo-bot",
        ]))
    }

    /// The agent, and a shell script as its bot.
    pub fn bot(script: &str) -> Self {
        Self { has_greenroom: true, changes: Vec::new() }.with(&entry_point(&[
            "/bin/greenroom",
            "agent",
            "--",
            "/bin/sh",
            "-c",
            script,
        ]))
    }

    /// A small image that runs a shell script without an agent. The shell has `sleep` and `cat`. It is the first
    /// process of its container, so the only signals that affect it are SIGKILL and those that it traps.
    pub fn script(script: &str) -> Self {
        Self { has_greenroom: false, changes: Vec::new() }.with(&entry_point(&["/bin/sh", "-c", script]))
    }

    /// Adds a line of a Dockerfile, such as `ENV`, `LABEL`, `STOPSIGNAL` or `HEALTHCHECK`.
    pub fn with(mut self, line: &str) -> Self {
        self.changes.push(line.to_owned());
        self
    }

    /// Adds a health check that runs a shell script at this interval, and fails at the first failure.
    pub fn with_health_check(self, every_ms: u64, script: &str) -> Self {
        let command = serde_json::to_string(&["/bin/sh", "-c", script]).unwrap();
        self.with(&format!("HEALTHCHECK --interval={every_ms}ms --timeout=5s --retries=1 CMD {command}"))
    }
}

fn entry_point(command: &[&str]) -> String {
    format!("ENTRYPOINT {}", serde_json::to_string(command).unwrap())
}

impl Engine {
    /// The name of an image of this recipe. Builds the image if the engine does not have it.
    pub async fn image(&self, recipe: &Recipe) -> String {
        let root = root(recipe.has_greenroom);
        let digest = Sha256::digest(format!("{} {:?}", root.display(), recipe.changes));
        let tag: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("greenroom-test:{tag}");
        if !self.has_image(&name).await {
            let options = CreateImageOptionsBuilder::new().from_src("-").repo("greenroom-test").tag(&tag);
            let options = options.changes(recipe.changes.clone()).build();
            let root = bollard::body_full(std::fs::read(&root).unwrap().into());
            let _: Vec<_> = self.docker.create_image(Some(options), Some(root), None).try_collect().await.unwrap();
        }
        name
    }
}

/// The file system of images, as an archive. It is made once in a run of the tests, although each test is a separate
/// process.
fn root(has_greenroom: bool) -> PathBuf {
    let folder = shared_folder();
    let lock = File::create(folder.join("images.lock")).unwrap();
    lock.lock().unwrap();

    let mut programs = SHELL.map(PathBuf::from).to_vec();
    let mut name = "shell".to_owned();
    if has_greenroom {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_greenroom"));
        let built = std::fs::metadata(&program).unwrap();
        name = format!("greenroom-{}-{}-{}", built.size(), built.mtime(), built.mtime_nsec());
        programs.push(program);
    }
    let archive = folder.join(format!("{name}.tar"));
    if !archive.exists() {
        let unfinished = archive.with_extension("unfinished");
        pack(&programs, &unfinished);
        std::fs::rename(&unfinished, &archive).unwrap();
    }
    archive
}

/// Packs programs into `/bin`, and their libraries at their own paths.
fn pack(programs: &[PathBuf], archive: &Path) {
    let root = tempfile::tempdir().unwrap();
    let put = |from: &Path, to: &Path| {
        let to = root.path().join(to.strip_prefix("/").unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, &to).unwrap();
        to
    };
    std::fs::create_dir(root.path().join("tmp")).unwrap();
    for program in programs {
        let copy = put(program, &Path::new("/bin").join(program.file_name().unwrap()));
        // Half of a debug build is debug information. Without `strip`, images are only larger.
        let _ = Command::new("strip").arg(&copy).output();
    }
    for library in libraries(programs) {
        put(&library, &library);
    }
    // The same files make the same layer, which engines and the registry store once.
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--file").arg(archive).arg("--directory").arg(root.path()).arg(".");
    assert!(tar.status().unwrap().success(), "tar failed");
}

/// The libraries of programs, from the output of ldd: `name => /path (address)` or `/path (address)`. Fails for a
/// program that is statically linked.
pub fn libraries(programs: &[PathBuf]) -> BTreeSet<PathBuf> {
    let lists = programs.iter().map(|program| Command::new("ldd").arg(program).output().unwrap().stdout);
    let text: String = lists.map(|list| String::from_utf8_lossy(&list).into_owned()).collect();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}
