//! A Docker Engine for measurements: an image of this program with its loaded libraries, and containers like those of
//! `docker run`. Everything is removed afterwards.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bollard::body_full;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
};
use futures_util::TryStreamExt;

use super::Done;
use crate::providers::docker::engine::Engine;

/// The path of this program in the image.
pub const PROGRAM: &str = "/greenroom";

#[derive(Debug)]
pub struct Containers {
    pub engine: Engine,
    pub image: String,
}

impl Containers {
    /// Sends the image to the engine.
    pub async fn make(host: Option<&str>) -> Done<Self> {
        let engine = Engine::new(host);
        let name = format!("greenroom-bench-{}", uuid::Uuid::new_v4().simple());
        let options = CreateImageOptionsBuilder::default().from_src("-").repo(&name).tag("1").build();
        let made = engine.docker().await?.create_image(Some(options), Some(body_full(archive()?.into())), None);
        made.try_collect::<Vec<_>>().await?;
        Ok(Self { engine, image: format!("{name}:1") })
    }

    /// The address at which containers reach the host, unless the operator gives another.
    pub async fn gateway(&self) -> Done<String> {
        let bridge = self.engine.docker().await?.inspect_network("bridge", None).await?;
        let configured = bridge.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
        let gateway = configured.into_iter().find_map(|config| config.gateway);
        gateway.ok_or_else(|| "the bridge network of the engine has no gateway: set --address".into())
    }

    /// Runs this program's bot in a new container, as `docker run` does. Returns the container's id.
    pub async fn run(&self, data: &str) -> Done<String> {
        let docker = self.engine.docker().await?;
        let body = ContainerCreateBody {
            image: Some(self.image.clone()),
            entrypoint: Some([PROGRAM, "bench", "bot"].map(str::to_owned).to_vec()),
            env: Some(vec![format!("BOT_DATA={data}")]),
            ..ContainerCreateBody::default()
        };
        let id = docker.create_container(None::<CreateContainerOptions>, body).await?.id;
        docker.start_container(&id, None).await?;
        Ok(id)
    }

    pub async fn remove_container(&self, id: &str) -> Done {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        Ok(self.engine.docker().await?.remove_container(id, Some(options)).await?)
    }

    pub async fn remove(self) -> Done {
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        self.engine.docker().await?.remove_image(&self.image, Some(options), None).await?;
        Ok(())
    }
}

/// An archive of this program and its loaded libraries.
fn archive() -> Done<Vec<u8>> {
    let mut files = BTreeSet::from([(PathBuf::from(PROGRAM), std::env::current_exe()?)]);
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        if let Some(path) = line.split_whitespace().nth(5).filter(|path| path.contains(".so")) {
            files.insert((path.into(), path.into()));
        }
    }
    // The program needs the loader under this name, which may be a link.
    for loader in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"] {
        if Path::new(loader).exists() {
            files.insert((loader.into(), loader.into()));
        }
    }
    let mut archive = Vec::new();
    for (name, path) in files {
        add(&mut archive, &name, &std::fs::read(path)?)?;
    }
    // An archive ends with two empty blocks.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    Ok(archive)
}

const BLOCK: usize = 512;

/// Adds a file to an archive in the POSIX format.
fn add(archive: &mut Vec<u8>, name: &Path, content: &[u8]) -> Done {
    let name = name.to_string_lossy();
    let name = name.trim_start_matches('/').as_bytes();
    if name.len() >= 100 {
        return Err("the name of a library is too long for the image".into());
    }
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name);
    put(100, b"0000755\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    // The checksum is computed with blanks in its own place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    Ok(())
}
