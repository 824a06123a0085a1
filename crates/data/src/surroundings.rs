//! The environment variables that configure a job's sources, and the callback for the waits of the sources.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time within which a repeated sentence counts as a report of the same wait.
const REPEATED_WITHIN: Duration = Duration::from_secs(60);

/// Environment variables. Values may be secrets, so `Debug` shows only the names.
#[derive(Clone, Default)]
pub struct EnvironmentVariables(BTreeMap<String, String>);

impl EnvironmentVariables {
    /// Returns the variables of this process. Variables that are not UTF-8 are left out.
    pub fn of_process() -> EnvironmentVariables {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Returns the value of a variable, or `None` if the variable is not set or empty.
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns all names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(name, value)| (name.clone(), value.clone()))
    }
}

impl FromIterator<(String, String)> for EnvironmentVariables {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> EnvironmentVariables {
        EnvironmentVariables(variables.into_iter().collect())
    }
}

impl fmt::Debug for EnvironmentVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Receives sentences about waits that a remote source causes, such as a wait for a rate limit.
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn(&str) + Send + Sync>);

impl OnWait {
    /// Returns a callback that calls `receive` with each sentence, on the thread that waits.
    pub fn new(receive: impl Fn(&str) + Send + Sync + 'static) -> OnWait {
        OnWait(Arc::new(receive))
    }

    /// Like [`OnWait::new`], but calls `receive` only once for a sentence that is repeated within a minute.
    pub fn without_repetitions(receive: impl Fn(&str) + Send + Sync + 'static) -> OnWait {
        let last: Mutex<Option<(String, Instant)>> = Mutex::default();
        OnWait::new(move |sentence| {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let is_new = last.as_ref().is_none_or(|(known, at)| known != sentence || at.elapsed() > REPEATED_WITHIN);
            *last = Some((sentence.to_owned(), Instant::now()));
            if is_new {
                receive(sentence);
            }
        })
    }

    pub(crate) fn receiver(&self) -> Arc<dyn Fn(&str) + Send + Sync> {
        Arc::clone(&self.0)
    }
}

impl Default for OnWait {
    fn default() -> OnWait {
        OnWait::new(|_| {})
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnWait")
    }
}
