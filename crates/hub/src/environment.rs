//! Reads the environment variables by which users configure clients of the hub.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::HubError;
use crate::url::Url;

const ENDPOINT: &str = "https://huggingface.co";

/// The token of a user. The debug output of the token hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken {
    secret: String,
    /// The variable or file from which the token was read, for messages.
    source: String,
}

impl HubToken {
    /// Returns the token in `text`, without the white space around it; `None` for an empty token. `source` names the
    /// variable or file that contains `text`.
    ///
    /// # Errors
    /// Returns `HubError::Environment` if the text can't be a token.
    pub fn parse(text: &str, source: &str) -> Result<Option<HubToken>, HubError> {
        let secret = text.trim();
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            let reason = "the token has spaces, control characters or letters outside of ASCII: copy it again from \
                          https://huggingface.co/settings/tokens";
            return Err(HubError::Environment { variable: source.to_owned(), reason: reason.to_owned() });
        }
        let token = HubToken { secret: secret.to_owned(), source: source.to_owned() };
        Ok((!secret.is_empty()).then_some(token))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token(from {})", self.source)
    }
}

/// The configuration of a client, from the variables that `huggingface_hub` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The URL of the hub, without a slash at the end: `HF_ENDPOINT`, or `https://huggingface.co`.
    pub endpoint: String,
    /// The token: `HF_TOKEN`, or the content of the file `HF_TOKEN_PATH`, or of `$HF_HOME/token`.
    pub token: Option<HubToken>,
    /// The folder of the hub's cache, which clients only read: `HF_HUB_CACHE`, or `$HF_HOME/hub`. `HF_HOME` is
    /// `$XDG_CACHE_HOME/huggingface` or `~/.cache/huggingface` by default.
    pub cache: Option<PathBuf>,
    /// Whether clients use only the cache: `HF_HUB_OFFLINE`.
    pub offline: bool,
}

impl Environment {
    /// Reads the variables through `lookup`, and the token from its file if no variable has the token.
    ///
    /// # Errors
    /// Returns `HubError::Environment` if a variable or the token's file can't be used.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Environment, HubError> {
        let variable = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let user_home = variable("HOME").map(PathBuf::from);
        let folder = |name: &str| Some(expand_home(&variable(name)?, user_home.as_deref()));
        let home = folder("HF_HOME").or_else(|| {
            let caches = folder("XDG_CACHE_HOME").or_else(|| Some(user_home.as_ref()?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let below_home = |name: &str| Some(home.as_ref()?.join(name));
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/');
        if Url::parse(endpoint).is_none_or(|url| url.to_string().contains('?')) {
            let reason = format!("\"{}\" is not a URL such as {ENDPOINT}", without_user(endpoint));
            return Err(HubError::Environment { variable: "HF_ENDPOINT".to_owned(), reason });
        }
        let token = match variable("HF_TOKEN") {
            Some(token) => HubToken::parse(&token, "HF_TOKEN")?,
            None => match folder("HF_TOKEN_PATH").or_else(|| below_home("token")) {
                Some(path) => token_in(&path)?,
                None => None,
            },
        };
        let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value));
        let cache = folder("HF_HUB_CACHE").or_else(|| below_home("hub"));
        Ok(Environment { endpoint: endpoint.to_owned(), token, cache, offline })
    }
}

fn token_in(path: &Path) -> Result<Option<HubToken>, HubError> {
    match fs::read_to_string(path) {
        Ok(text) => HubToken::parse(&text, &path.display().to_string()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(HubError::file("read the token in", path, &error)),
    }
}

/// Hides the user and the password of a URL. Messages must not show a password.
fn without_user(endpoint: &str) -> String {
    match (endpoint.split_once("://"), endpoint.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://...@{host}"),
        _ => endpoint.to_owned(),
    }
}

fn expand_home(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.trim().to_ascii_uppercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, HubError> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        Environment::read(lookup)
    }

    #[test]
    fn a_user_without_variables_reads_the_public_hub() {
        let environment = read(&[("HOME", "/nowhere")]).unwrap();
        let cache = Some(PathBuf::from("/nowhere/.cache/huggingface/hub"));
        let expected = Environment { endpoint: ENDPOINT.to_owned(), token: None, cache, offline: false };
        assert_eq!(environment, expected);
        assert_eq!(read(&[]).unwrap().cache, None);
    }

    #[test]
    fn the_cache_is_where_the_variables_say() {
        let cache = |variables: &[(&str, &str)]| read(variables).unwrap().cache.unwrap();
        let home = ("HOME", "/home/u");
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/h")]), Path::new("/home/u/h/hub"));
        assert_eq!(cache(&[home, ("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
    }

    #[test]
    fn a_token_comes_from_the_variable_or_a_file() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("token"), "hf_default\n").unwrap();
        fs::write(home.path().join("other"), "\n hf_other \r\n").unwrap();
        let other = home.path().join("other").display().to_string();
        let secret = |variables: &[(&str, &str)]| {
            let home = ("HF_HOME", home.path().to_str().unwrap());
            let variables: Vec<_> = variables.iter().copied().chain([home]).collect();
            read(&variables).unwrap().token.map(|token| token.secret)
        };
        assert_eq!(secret(&[]).unwrap(), "hf_default");
        assert_eq!(secret(&[("HF_TOKEN_PATH", &other)]).unwrap(), "hf_other");
        assert_eq!(secret(&[("HF_TOKEN_PATH", &other), ("HF_TOKEN", "hf_variable\n")]).unwrap(), "hf_variable");
        assert_eq!(secret(&[("HF_TOKEN_PATH", "/nowhere")]), None);
    }

    #[test]
    fn what_cannot_be_a_token_is_not_shown() {
        for text in ["hf_se\ncret", "hf_se\u{7}cret", "hf_sécret"] {
            let message = read(&[("HF_TOKEN", text)]).unwrap_err().to_string();
            assert!(message.starts_with("HF_TOKEN: the token has") && !message.contains("cret"), "{message}");
        }
        let token = HubToken::parse("hf_secret", "HF_TOKEN").unwrap().unwrap();
        assert_eq!(format!("{token:?}"), "Token(from HF_TOKEN)");
    }

    #[test]
    fn an_endpoint_is_a_url() {
        assert_eq!(read(&[("HF_ENDPOINT", "http://localhost:80/hf/")]).unwrap().endpoint, "http://localhost:80/hf");
        for endpoint in ["huggingface.co", "https://", "https://u:word@mirror", "https://mirror?a"] {
            let message = read(&[("HF_ENDPOINT", endpoint)]).unwrap_err().to_string();
            assert!(message.starts_with("HF_ENDPOINT: ") && !message.contains("word"), "{message}");
        }
    }

    #[test]
    fn offline_is_a_truth_value() {
        assert!(["1", "true", "YES", "on"].iter().all(|value| read(&[("HF_HUB_OFFLINE", value)]).unwrap().offline));
        assert!(!["0", "false", "", "no"].iter().any(|value| read(&[("HF_HUB_OFFLINE", value)]).unwrap().offline));
    }
}
