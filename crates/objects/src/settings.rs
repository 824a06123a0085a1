//! Configures buckets from the environment variables of a job.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use stagecoach_remote::RetryPolicy;
use url::Url;

use crate::error::ObjectError;
use crate::failure::reason;
use crate::http::Connector;
use crate::provider::Provider;
use crate::uri::ObjectUri;

/// A store that reads the objects of a bucket, and lists them in pages.
pub(crate) trait ListableStore: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> ListableStore for T {}

/// Variables that configure object stores. `Debug` shows only the names, because values may be secrets.
#[derive(Clone)]
pub(crate) struct StoreVariables(BTreeMap<String, String>);

impl fmt::Debug for StoreVariables {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

impl StoreVariables {
    /// Keeps the non-empty `variables` whose names have the prefix of an object store.
    pub(crate) fn new(variables: impl IntoIterator<Item = (String, String)>) -> StoreVariables {
        let is_used = |name: &str| Provider::ALL.iter().any(|provider| name.starts_with(provider.prefix()));
        StoreVariables(variables.into_iter().filter(|(name, value)| is_used(name) && !value.is_empty()).collect())
    }

    /// Opens a bucket. Sends no request.
    ///
    /// # Errors
    /// Fails if a variable can't be used or is missing.
    pub(crate) fn open(&self, bucket: &ObjectUri, policy: &RetryPolicy) -> Result<Arc<dyn ListableStore>, ObjectError> {
        let (provider, name) = (bucket.provider, bucket.bucket.as_str());
        self.check(provider)?;
        let endpoint = self.endpoint(provider)?;
        let is_http = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
        // a body that makes progress has no timeout
        let options = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(policy.connect)
            .with_read_timeout(policy.silence)
            .with_allow_http(is_http || provider == Provider::Google);
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let variables = self.0.iter().filter(|(variable, _)| variable.starts_with(provider.prefix()));
        let variables = variables.map(|(variable, value)| (variable.to_ascii_lowercase(), value));
        // the three builders have the same methods, but no common trait
        macro_rules! configured {
            ($builder:expr) => {
                variables
                    .fold($builder.with_client_options(options), |builder, (variable, value)| match variable.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    })
                    .with_retry(retry)
                    .with_http_connector(Connector)
            };
        }
        let store: object_store::Result<Arc<dyn ListableStore>> = match provider {
            Provider::S3 => {
                let mut builder = configured!(AmazonS3Builder::new()).with_bucket_name(name);
                if let Some(endpoint) = &endpoint
                    && self.is_virtual_hosted()
                {
                    builder = builder.with_endpoint(with_bucket(endpoint, name));
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            Provider::Google => {
                let builder = configured!(GoogleCloudStorageBuilder::new()).with_bucket_name(name);
                builder.build().map(|store| Arc::new(store) as _)
            }
            Provider::Azure => {
                let builder = configured!(MicrosoftAzureBuilder::new()).with_container_name(name);
                builder.build().map(|store| Arc::new(store) as _)
            }
        };
        store.map_err(|error| ObjectError::StoreVariables { provider, reason: self.redacted(&reason(&error)) })
    }

    /// Checks the variables that `object_store` does not check. `object_store` would panic at an invalid URL.
    ///
    /// # Errors
    /// Returns `ObjectError::Endpoint` or `ObjectError::StoreVariables` if a variable can't be used.
    fn check(&self, provider: Provider) -> Result<(), ObjectError> {
        for variable in provider.endpoint_variables().iter().chain(provider.url_variables()) {
            self.url(variable)?;
        }
        let is_region = |text: &String| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        match ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find(|name| !self.0.get(**name).is_none_or(is_region)) {
            Some(name) if provider == Provider::S3 => {
                Err(ObjectError::StoreVariables { provider, reason: format!("{name} is not the name of a region") })
            }
            _ => Ok(()),
        }
    }

    /// Returns the URL of the server; `None` if no variable sets it.
    fn endpoint(&self, provider: Provider) -> Result<Option<Url>, ObjectError> {
        let set = provider.endpoint_variables().iter().find(|name| self.0.contains_key(**name));
        set.map_or(Ok(None), |variable| self.url(variable))
    }

    /// Parses the URL in a variable; `None` if the variable is not set.
    ///
    /// # Errors
    /// Returns `ObjectError::Endpoint` if the value is not the URL of a server.
    fn url(&self, variable: &str) -> Result<Option<Url>, ObjectError> {
        let Some(text) = self.0.get(variable) else { return Ok(None) };
        let bad = |reason: String| ObjectError::Endpoint { variable: variable.to_owned(), reason };
        let url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(bad("it does not begin with http:// or https:// and a host".to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it has more than a host, a port and a path".to_owned()));
        }
        Ok(Some(url))
    }

    fn is_virtual_hosted(&self) -> bool {
        let value = self.0.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST");
        value.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y"))
    }

    /// Returns the names of the credential variables of a provider that are set. The text is empty if none is set.
    pub(crate) fn credentials(&self, provider: Provider) -> String {
        let names = provider.credential_variables().iter().filter(|name| self.0.contains_key(**name));
        names.copied().collect::<Vec<_>>().join(", ")
    }

    /// Removes the values of secret variables from `text`. A server may repeat these values in its messages.
    pub(crate) fn redacted(&self, text: &str) -> String {
        const SECRETS: [&str; 4] = ["KEY", "SECRET", "TOKEN", "PASSWORD"];
        let is_secret = |name: &str| SECRETS.iter().any(|word| name.contains(word)) && !name.ends_with("_FILE");
        let secrets = self.0.iter().filter(|(name, value)| is_secret(name) && value.len() > 3);
        secrets.fold(text.to_owned(), |text, (name, value)| text.replace(value.as_str(), &format!("[{name}]")))
    }
}

/// Returns the endpoint with the bucket as a part of the host name.
fn with_bucket(endpoint: &Url, bucket: &str) -> String {
    let text = endpoint.to_string();
    let text = text.trim_end_matches('/');
    match text.split_once("://") {
        Some((scheme, host)) if !host.starts_with(&format!("{bucket}.")) => format!("{scheme}://{bucket}.{host}"),
        _ => text.to_owned(),
    }
}
