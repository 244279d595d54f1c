//! A relay between a client and its HTTP server. It can delay or drop answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// The delay of a late answer.
const LATE: Duration = Duration::from_millis(300);

/// The faults of the next answers to requests that change something. Requests that only read are never disturbed.
#[derive(Debug, Default)]
struct Troubles {
    late: AtomicUsize,
    lost: AtomicUsize,
}

/// A TCP server that forwards to a Unix socket, or to another TCP server.
#[derive(Debug)]
pub struct Relay {
    pub address: String,
    troubles: Arc<Troubles>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Relay {
    pub async fn to(socket: &str) -> Self {
        let socket = socket.trim_start_matches("unix://").to_owned();
        Self::serve(move || UnixStream::connect(socket.clone())).await
    }

    /// Forwards to the server at an `http://` address.
    pub async fn to_url(url: &str) -> Self {
        let address = url.trim_start_matches("http://").to_owned();
        Self::serve(move || TcpStream::connect(address.clone())).await
    }

    async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static, F: Future<Output = io::Result<S>> + Send>(
        connect: impl Fn() -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let troubles = Arc::<Troubles>::default();
        let shared = troubles.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = connect().await else { continue };
                tokio::spawn(carry(client, server, shared.clone()));
            }
        });
        Self { address, troubles, serving }
    }

    /// Delays the next answers to changes.
    pub fn delay(&self, count: usize) {
        self.troubles.late.store(count, Ordering::SeqCst);
    }

    /// Drops the next answers to changes. The changes are carried out.
    pub fn lose(&self, count: usize) {
        self.troubles.lost.store(count, Ordering::SeqCst);
    }

    /// Whether all answers that were to be lost are lost.
    pub fn lost_all(&self) -> bool {
        self.troubles.lost.load(Ordering::SeqCst) == 0
    }
}

/// Decrements a count, if it is above zero.
fn take(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

async fn carry(mut client: TcpStream, mut server: impl AsyncRead + AsyncWrite + Unpin, troubles: Arc<Troubles>) {
    let (mut asked, mut answered) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut is_change = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    let begins = |method: &[u8]| asked[..length].starts_with(method);
                    if begins(b"GET ") || begins(b"HEAD ") {
                        is_change = false;
                    } else if begins(b"POST ") || begins(b"DELETE ") || begins(b"PUT ") {
                        is_change = true;
                    }
                    if server.write_all(&asked[..length]).await.is_err() {
                        return;
                    }
                }
            },
            read = server.read(&mut answered) => match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    if is_change && take(&troubles.lost) {
                        return;
                    }
                    if is_change && take(&troubles.late) {
                        tokio::time::sleep(LATE).await;
                    }
                    is_change = false;
                    if client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
            },
        }
    }
}
