//! A load balancer in front of several replicas. It sends each connection to any of them, so each replica must handle
//! every client.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

#[derive(Debug)]
pub struct Balancer {
    pub url: String,
    backends: Arc<Mutex<Vec<SocketAddr>>>,
    _ending: DropGuard,
}

impl Balancer {
    /// Starts to listen. Until it has a backend, it closes each connection.
    pub async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let backends = Arc::new(Mutex::new(Vec::new()));
        let ending = CancellationToken::new();
        let work = accept(listener, backends.clone(), ending.clone());
        tokio::spawn(ending.clone().run_until_cancelled_owned(work));
        Self { url, backends, _ending: ending.drop_guard() }
    }

    /// Sends new connections to these backends. Open connections stay where they are.
    pub fn set(&self, backends: impl IntoIterator<Item = SocketAddr>) {
        *self.backends.lock().unwrap() = backends.into_iter().collect();
    }
}

async fn accept(listener: TcpListener, backends: Arc<Mutex<Vec<SocketAddr>>>, ending: CancellationToken) {
    loop {
        let Ok((mut client, _)) = listener.accept().await else { continue };
        let mut backends = backends.lock().unwrap().clone();
        let ending = ending.clone();
        tokio::spawn(ending.run_until_cancelled_owned(async move {
            // A backend that refuses a connection has done nothing, so the balancer may try another.
            while !backends.is_empty() {
                let any = uuid::Uuid::new_v4().as_u128() as usize % backends.len();
                if let Ok(mut backend) = TcpStream::connect(backends.swap_remove(any)).await {
                    let _ = (client.set_nodelay(true), backend.set_nodelay(true));
                    let (mut from_client, mut to_client) = client.split();
                    let (mut from_backend, mut to_backend) = backend.split();
                    // When one side closes, the other closes too. So no client waits for a replica that was killed.
                    tokio::select! {
                        _ = tokio::io::copy(&mut from_client, &mut to_backend) => {}
                        _ = tokio::io::copy(&mut from_backend, &mut to_client) => {}
                    }
                    return;
                }
            }
        }));
    }
}
