//! Certificates for one test: of an authority, a server and a client.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// How clients reach the fake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NomadTls {
    #[default]
    Off,
    /// HTTPS with a certificate of an authority that no client trusts by default.
    On,
    /// Like `On`, but clients need a certificate of that authority.
    Mutual,
}

/// The certificates and the key that a client needs, all as PEM.
#[derive(Clone, Debug)]
pub struct NomadCertificates {
    pub authority: String,
    pub client: String,
    pub client_key: String,
    server: String,
    server_key: String,
}

impl NomadCertificates {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let signed = |names: &[&str], purpose: ExtendedKeyUsagePurpose| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.extended_key_usages = vec![purpose];
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
        };
        let (server, server_key) =
            signed(&["localhost", "127.0.0.1", "server.global.nomad"], ExtendedKeyUsagePurpose::ServerAuth);
        let (client, client_key) = signed(&["client.global.nomad"], ExtendedKeyUsagePurpose::ClientAuth);
        Self { authority: authority.pem(), client, client_key, server, server_key }
    }

    pub fn acceptor(&self, tls: NomadTls) -> Option<TlsAcceptor> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = match tls {
            NomadTls::Off => return None,
            NomadTls::On => builder.unwrap().with_no_client_auth(),
            NomadTls::Mutual => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.unwrap().with_client_cert_verifier(verifier)
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(self.server.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.server_key.as_bytes()).unwrap();
        Some(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap())))
    }
}
