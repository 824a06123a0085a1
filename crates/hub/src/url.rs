//! Parses the parts of URLs that the client needs.

use std::fmt::{self, Display};

/// An http or https URL, split where its path begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// The scheme and the host with its port, in lower case and without the default port of the scheme. URLs of one
    /// server have equal origins.
    origin: String,
    /// The path and the query. The text begins with a slash.
    target: String,
}

impl Url {
    /// Parses a URL; `None` if the text is not an http or https URL, or has a user before the host.
    pub(crate) fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let (scheme, own_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => ("http", ":80"),
            "https" => ("https", ":443"),
            _ => return None,
        };
        let (host, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let is_odd = |letter: char| letter == '@' || letter.is_whitespace() || letter.is_control();
        if host.is_empty() || host.contains(is_odd) || target.contains(char::is_control) {
            return None;
        }
        let host = host.to_ascii_lowercase();
        let host = host.strip_suffix(own_port).unwrap_or(&host);
        let target = target.split('#').next().unwrap_or_default();
        let slash = if target.starts_with('/') { "" } else { "/" };
        Some(Url { origin: format!("{scheme}://{host}"), target: format!("{slash}{target}") })
    }

    /// Returns the URL of `location`, which is absolute or relative to this URL.
    pub(crate) fn join(&self, location: &str) -> Option<Url> {
        if location.starts_with("//") {
            let scheme = self.origin.split("//").next()?;
            Url::parse(&format!("{scheme}{location}"))
        } else if location.starts_with('/') {
            Url::parse(&format!("{}{location}", self.origin))
        } else if location.contains("://") {
            Url::parse(location)
        } else if location.starts_with('?') {
            Url::parse(&format!("{}{}{location}", self.origin, self.path()))
        } else {
            let folder = &self.path()[..=self.path().rfind('/')?];
            Url::parse(&format!("{}{folder}{location}", self.origin))
        }
    }

    /// Whether this URL has the same host as `origin`, and uses https if `origin` uses https.
    pub(crate) fn is_within(&self, origin: &Url) -> bool {
        self.host() == origin.host() && (self.origin.starts_with("https:") || origin.origin.starts_with("http:"))
    }

    /// Returns the host with its port.
    pub(crate) fn host(&self) -> &str {
        self.origin.split("//").last().unwrap_or_default()
    }

    /// Returns the URL without the query, which may contain a secret signature.
    pub(crate) fn public(&self) -> String {
        format!("{}{}", self.origin, self.path())
    }

    fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

impl Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.origin, self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_one_spelling() {
        let origin = |text| Url::parse(text).unwrap().origin;
        assert_eq!(origin("HTTPS://Hub.Example:443/a"), "https://hub.example");
        assert_eq!(origin("http://hub.example:443"), "http://hub.example:443");
        for text in ["hub.example", "ftp://a/b", "https://", "https://user:word@host/a", "https://a b/c", "http://a/\n"]
        {
            assert_eq!(Url::parse(text), None, "{text}");
        }
    }

    #[test]
    fn locations_are_absolute_or_relative() {
        let from = Url::parse("https://hub/a/b?c=d").unwrap();
        let cases = [
            ("/x?y", "https://hub/x?y"),
            ("x", "https://hub/a/x"),
            ("?page=2", "https://hub/a/b?page=2"),
            ("//cdn/x", "https://cdn/x"),
            ("http://cdn/x?y=https://z", "http://cdn/x?y=https://z"),
        ];
        for (location, expected) in cases {
            assert_eq!(from.join(location).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn a_server_is_its_host_and_port() {
        let is_within = |url, origin| Url::parse(url).unwrap().is_within(&Url::parse(origin).unwrap());
        assert!(is_within("https://hub/a", "https://HUB:443/b") && is_within("https://hub/a", "http://hub/a"));
        assert!(!is_within("http://hub/a", "https://hub/a"));
        assert!(!is_within("https://hub:444/a", "https://hub/a") && !is_within("https://hub.evil/a", "https://hub/a"));
    }

    #[test]
    fn the_public_url_has_no_query() {
        assert_eq!(Url::parse("https://cdn/x?Signature=s").unwrap().public(), "https://cdn/x");
    }
}
