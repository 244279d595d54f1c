//! A registry that stops in the middle of a layer: it stands before a real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// So much of what is fetched comes: all of an image's configuration, and the beginning of a layer.
const COMES: usize = 64 * 1024;

#[derive(Debug)]
pub struct StallingRegistry {
    pub address: String,
    shared: Arc<Shared>,
    serving: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    stalls: AtomicBool,
    given_up: AtomicUsize,
}

impl Drop for StallingRegistry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl StallingRegistry {
    /// Where engines reach it, and stalled from the start.
    pub async fn before(registry: &str) -> Self {
        let listener = TcpListener::bind((super::gateway(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared { stalls: AtomicBool::new(true), given_up: AtomicUsize::new(0) });
        let (registry, known) = (registry.to_owned(), shared.clone());
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&registry).await else { continue };
                tokio::spawn(carry(client, server, known.clone()));
            }
        });
        Self { address, shared, serving }
    }

    /// From now on what is asked for comes.
    pub fn go_on(&self) {
        self.shared.stalls.store(false, Ordering::SeqCst);
    }

    /// How many have closed their connection instead of waiting on.
    pub fn given_up(&self) -> usize {
        self.shared.given_up.load(Ordering::SeqCst)
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, shared: Arc<Shared>) {
    let (mut asked, mut answered) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    let mut came = 0;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    came = 0;
                    if server.write_all(&asked[..length]).await.is_err() {
                        return;
                    }
                }
            },
            read = server.read(&mut answered) => match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    came += length;
                    if came > COMES && shared.stalls.load(Ordering::SeqCst) {
                        while client.read(&mut asked).await.is_ok_and(|length| length > 0) {}
                        shared.given_up.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    if client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
            },
        }
    }
}
