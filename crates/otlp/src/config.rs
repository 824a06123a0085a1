//! Reads the settings of the export from OpenTelemetry's standard environment variables.

use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use ureq::http::{HeaderName, HeaderValue, Uri};

/// The settings of the export: the collector's address, the settings of its requests, and the attributes of this
/// process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The collector's address, without a slash at its end.
    pub(crate) endpoint: String,
    /// Headers sent with each request.
    pub(crate) headers: Vec<(String, String)>,
    /// The time limit of one request.
    pub(crate) timeout: Duration,
    /// The interval between two exports of all metrics.
    pub(crate) metric_interval: Duration,
    /// Attributes of this process from the environment, which may include `service.name`.
    pub(crate) resource: Vec<(String, String)>,
}

/// The error for an environment variable with an invalid value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{variable} is {value:?}: expected {expected}")]
pub struct OtlpConfigError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl OtlpConfig {
    /// Reads the environment through `variable`. Returns `None` if the environment names no collector or disables the
    /// export.
    ///
    /// # Errors
    /// Fails if a variable has an invalid value.
    pub fn from_vars(variable: impl Fn(&str) -> Option<String>) -> Result<Option<OtlpConfig>, OtlpConfigError> {
        // an empty variable counts as unset
        let read = |name: &'static str| variable(name).map(|value| value.trim().to_owned()).filter(|v| !v.is_empty());
        let Some(endpoint) = read("OTEL_EXPORTER_OTLP_ENDPOINT") else { return Ok(None) };
        if read("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let wrong = |variable, value, expected| OtlpConfigError { variable, value, expected };
        let is_url = endpoint.parse::<Uri>().is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        if !is_url {
            return Err(wrong("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint, "a URL, such as http://collector:4318"));
        }
        if let Some(protocol) = read("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
            return Err(wrong("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, "http/protobuf"));
        }
        let pairs = |name: &'static str| match read(name) {
            // the error does not show the value, because headers contain credentials
            Some(text) => pairs(&text).ok_or_else(|| wrong(name, "...".to_owned(), "key=value,key=value")),
            None => Ok(Vec::new()),
        };
        let headers = pairs("OTEL_EXPORTER_OTLP_HEADERS")?;
        let is_header = |(name, value): &(String, String)| {
            HeaderName::from_str(name).is_ok() && HeaderValue::from_str(value).is_ok()
        };
        if !headers.iter().all(is_header) {
            return Err(wrong("OTEL_EXPORTER_OTLP_HEADERS", "...".to_owned(), "names and values of HTTP headers"));
        }
        let millis = |name: &'static str, default: u64| match read(name) {
            Some(text) => match text.parse() {
                Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
                _ => Err(wrong(name, text, "milliseconds")),
            },
            None => Ok(Duration::from_millis(default)),
        };
        let mut resource = pairs("OTEL_RESOURCE_ATTRIBUTES")?;
        if let Some(name) = read("OTEL_SERVICE_NAME") {
            resource.retain(|(key, _)| key != "service.name");
            resource.push(("service.name".to_owned(), name));
        }
        Ok(Some(OtlpConfig {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            headers,
            timeout: millis("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000)?,
            metric_interval: millis("OTEL_METRIC_EXPORT_INTERVAL", 60_000)?,
            resource,
        }))
    }

    /// Returns the attributes of this process: all attributes from the environment, and the attributes of `own` that
    /// the environment does not set.
    pub(crate) fn resource(&self, own: Vec<(String, String)>) -> Vec<(String, String)> {
        let is_given = |key: &String| self.resource.iter().any(|(given, _)| given == key);
        let own = own.into_iter().filter(|(key, _)| !is_given(key));
        self.resource.iter().cloned().chain(own).collect()
    }
}

/// Parses `key=value,key=value`, where the values are percent-encoded.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((key.trim().to_owned(), value.into_owned())).filter(|(key, _)| !key.is_empty())
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<Option<OtlpConfig>, OtlpConfigError> {
        let found = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        OtlpConfig::from_vars(found)
    }

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named() {
        assert_eq!(config(&[]), Ok(None));
        assert_eq!(config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " "), ("OTEL_SERVICE_NAME", "a")]), Ok(None));
        let disabled = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"), ("OTEL_SDK_DISABLED", "TRUE")];
        assert_eq!(config(&disabled), Ok(None));
    }

    #[test]
    fn the_standard_variables_are_read() {
        let read = config(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", " https://collector:4318/ "),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20a%3Db, x-tenant = 7 ,"),
            ("OTEL_RESOURCE_ATTRIBUTES", "team=nlp,service.name=other,service.instance.id=me"),
            ("OTEL_SERVICE_NAME", "trainer "),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ]);
        let read = read.unwrap().unwrap();
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        assert_eq!(read.endpoint, "https://collector:4318");
        assert_eq!(read.headers, [("authorization", "Bearer a=b"), ("x-tenant", "7")].map(pair));
        assert_eq!((read.timeout.as_millis(), read.metric_interval.as_secs()), (2500, 60));
        let own = [("service.name", "stagecoach"), ("service.instance.id", "pod"), ("stagecoach.job", "a")].map(pair);
        let expected =
            [("team", "nlp"), ("service.instance.id", "me"), ("service.name", "trainer"), ("stagecoach.job", "a")];
        assert_eq!(read.resource(own.to_vec()), expected.map(pair));
    }

    #[test]
    fn impossible_values_are_named_and_credentials_are_not_shown() {
        let reported = |name: &'static str, value: &str| {
            let vars = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"), (name, value)];
            config(&vars[usize::from(name == vars[0].0)..]).unwrap_err().to_string()
        };
        assert_eq!(
            reported("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
            "OTEL_EXPORTER_OTLP_ENDPOINT is \"collector:4317\": expected a URL, such as http://collector:4318"
        );
        let spaces = reported("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a collector");
        assert!(spaces.ends_with("expected a URL, such as http://collector:4318"), "{spaces}");
        for header in ["x=secret%0A", "x y=secret"] {
            let headers = reported("OTEL_EXPORTER_OTLP_HEADERS", header);
            assert!(headers.ends_with("expected names and values of HTTP headers") && !headers.contains("secret"));
        }
        assert!(reported("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").ends_with("expected http/protobuf"));
        assert!(reported("OTEL_METRIC_EXPORT_INTERVAL", "0").ends_with("expected milliseconds"));
        assert!(reported("OTEL_EXPORTER_OTLP_TIMEOUT", "soon").ends_with("expected milliseconds"));
        let headers = reported("OTEL_EXPORTER_OTLP_HEADERS", "secret");
        assert!(headers.ends_with("expected key=value,key=value") && !headers.contains("secret"), "{headers}");
        assert!(reported("OTEL_RESOURCE_ATTRIBUTES", "=a").contains("OTEL_RESOURCE_ATTRIBUTES"));
    }
}
