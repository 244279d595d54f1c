//! A proxy in front of a real registry. It stops in the middle of a layer.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How many bytes of each download arrive: all of an image's configuration, and the beginning of a layer.
const COMES: usize = 64 * 1024;

#[derive(Debug)]
pub struct StallingRegistry {
    pub address: String,
    stalls: Arc<watch::Sender<bool>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for StallingRegistry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl StallingRegistry {
    /// Starts the proxy on an address that engines can reach. Downloads stall from the start.
    pub async fn before(registry: &str) -> Self {
        let listener = TcpListener::bind((super::gateway(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stalls = Arc::new(watch::Sender::new(true));
        let (registry, known) = (registry.to_owned(), stalls.clone());
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&registry).await else { continue };
                tokio::spawn(carry(client, server, known.subscribe()));
            }
        });
        Self { address, stalls, serving }
    }

    /// Lets all downloads continue, also those that are stalled.
    pub fn go_on(&self) {
        self.stalls.send_replace(false);
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, mut stalls: watch::Receiver<bool>) {
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
                    if came > COMES && stalls.wait_for(|stalls| !stalls).await.is_err() {
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
