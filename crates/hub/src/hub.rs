//! The state that all readers and listings of one hub share.

use std::fmt;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use stagecoach_remote::{RetryPolicy, Waiter};

use crate::cache::Cache;
use crate::environment::Environment;
use crate::error::HubError;
use crate::headers::next_link;
use crate::http::{Http, header};
use crate::retry::{HubRetry, RequestFailure};
use crate::signed::SignedUrls;
use crate::status::{self, RequestSubject};
use crate::url::Url;

/// The HTTP client, the cache and the settings of one hub.
pub(crate) struct Hub {
    pub(crate) http: Http,
    pub(crate) cache: Option<Cache>,
    /// Whether clients use only the cache.
    pub(crate) is_offline: bool,
    pub(crate) signed: SignedUrls,
    policy: RetryPolicy,
    waiter: Waiter,
}

impl fmt::Debug for Hub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Hub");
        debug.field("endpoint", &self.http.endpoint).field("is_offline", &self.is_offline).finish_non_exhaustive()
    }
}

impl Hub {
    pub(crate) fn new(environment: Environment, policy: RetryPolicy, waiter: Waiter) -> Result<Hub, HubError> {
        let http = Http::new(&environment, &policy)?;
        let cache = environment.cache.map(|root| Cache { root });
        Ok(Hub { http, cache, is_offline: environment.offline, signed: SignedUrls::default(), policy, waiter })
    }

    pub(crate) fn retry(&self) -> HubRetry {
        HubRetry::new(self.policy, self.waiter.clone())
    }

    /// Returns the error of an offline client for `what`, which the cache lacks.
    pub(crate) fn not_cached(&self, what: String) -> HubError {
        let cache = self.cache.as_ref().map_or_else(PathBuf::new, |cache| cache.root.clone());
        HubError::NotCached { what, cache }
    }

    /// Returns a document of the API, and the URL of the next page if there is one.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        url: &Url,
        subject: RequestSubject<'_>,
    ) -> Result<(T, Option<Url>), HubError> {
        let mut retry = self.retry();
        loop {
            match self.ask_once(url, subject) {
                Ok(answer) => return Ok(answer),
                Err(failure) => retry.wait(failure)?,
            }
        }
    }

    fn ask_once<T: DeserializeOwned>(
        &self,
        url: &Url,
        subject: RequestSubject<'_>,
    ) -> Result<(T, Option<Url>), RequestFailure> {
        let answer = self.http.get(url, None)?;
        if answer.status != 200 {
            return Err(status::failure(&self.http, &answer, subject));
        }
        let next = header(&answer.headers, "link").and_then(next_link).and_then(|link| answer.url.join(link));
        Ok((answer.into_json()?, next))
    }
}
