//! Sends requests to the collector.

use std::sync::Arc;

use prost::Message;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use crate::OtlpConfig;

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// The same request may succeed later.
    #[error("{0}")]
    Later(String),
    /// The same request can't succeed.
    #[error("{0}")]
    Refused(String),
}

/// The HTTP client of the collector.
pub(crate) struct CollectorClient {
    agent: Agent,
    config: OtlpConfig,
}

impl CollectorClient {
    pub(crate) fn new(config: OtlpConfig) -> CollectorClient {
        // the client trusts the certificate store of the machine, as other programs on the machine do
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(config.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("stagecoach/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        CollectorClient { agent, config }
    }

    pub(crate) fn config(&self) -> &OtlpConfig {
        &self.config
    }

    /// Sends `message` to the path `v1/SIGNAL` below the endpoint.
    pub(crate) fn send(&self, signal: &str, message: &impl Message) -> Result<(), ExportError> {
        let url = format!("{}/v1/{signal}", self.config.endpoint);
        let mut request = self.agent.post(&url).content_type("application/x-protobuf");
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        let response = request.send(&message.encode_to_vec());
        let status = response.map_err(|error| ExportError::Later(format!("{url}: {error}")))?.status();
        match status.as_u16() {
            200..=299 => Ok(()),
            429 | 502 | 503 | 504 => Err(ExportError::Later(format!("{url} answered {status}"))),
            _ => Err(ExportError::Refused(format!("{url} answered {status}"))),
        }
    }
}
