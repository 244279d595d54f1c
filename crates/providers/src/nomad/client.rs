//! The HTTP client for Nomad: the trusted certificates, the client certificate, and the name of the server in its
//! certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, Identity, Url};

use crate::error_text::with_causes;
use config::provider::NomadConfig;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The client and the URL for requests, or the reason why there is no client.
pub fn client(config: &NomadConfig) -> Result<(Client, Url), String> {
    let mut url = Url::parse(&config.address).map_err(|error| format!("the address of Nomad is not valid: {error}"))?;
    let file = |path: &String| std::fs::read(path).map_err(|error| format!("{path} cannot be read: {error}"));
    let mut builder = Client::builder()
        .connect_timeout(CONNECT_WITHIN)
        .timeout(ANSWER_WITHIN)
        // The token is only for the configured address.
        .redirect(reqwest::redirect::Policy::none());
    if let Some(path) = &config.ca_cert {
        let wrong = |error| format!("{path} is not a PEM certificate: {}", with_causes(&error));
        let authorities = Certificate::from_pem_bundle(&file(path)?).map_err(wrong)?;
        if authorities.is_empty() {
            return Err(format!("{path} is not a PEM certificate"));
        }
        builder = builder.tls_certs_only(authorities);
    } else if config.address.starts_with("http://") {
        // Without TLS no certificate is needed. A small image may lack the certificates of the system.
        builder = builder.tls_certs_only([]);
    }
    if let (Some(certificate), Some(key)) = (&config.client_cert, &config.client_key) {
        let pem = [file(key)?, b"\n".to_vec(), file(certificate)?].concat();
        let wrong =
            |error| format!("{certificate} and {key} are not a PEM certificate and its key: {}", with_causes(&error));
        builder = builder.identity(Identity::from_pem(&pem).map_err(wrong)?);
    }
    if let Some(name) = &config.tls_server_name {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        url.set_host(Some(name)).map_err(|error| format!("{name} is not the name of a server: {error}"))?;
        // A proxy could not resolve that name.
        builder = builder.dns_resolver(Arc::new(Always(host))).no_proxy();
    }
    let client = builder
        .build()
        .map_err(|error| format!("the HTTP client for Nomad cannot be set up: {}", with_causes(&error)))?;
    Ok((client, url))
}

/// Resolves every name to one host. Requests use the name in the server's certificate, which DNS need not know.
struct Always(String);

impl Resolve for Always {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
