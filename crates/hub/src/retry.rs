//! Decides whether the client retries a failed request, and waits before the retry.

use std::time::Duration;

use stagecoach_remote::{Retry, RetryPolicy, Waiter, jitter};

use crate::error::HubError;

/// The limits of retries, waits and timeouts that suit the Hugging Face hub.
pub const HUB_RETRY_POLICY: RetryPolicy = RetryPolicy {
    first_wait: Duration::from_secs(1),
    longest_wait: Duration::from_secs(60),
    without_progress: Duration::from_secs(3600),
    attempts: Some(7),
    connect: Duration::from_secs(20),
    silence: Duration::from_secs(60),
};

/// The failure of a request.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// The same request would fail again.
    Final(HubError),
    /// The same request may succeed later.
    Temporary(HubError),
    /// The CDN refuses a signed URL, which may have expired.
    Expired(HubError),
    /// The host limits requests. `wait` is the time that the host states.
    Limited { host: String, wait: Option<Duration> },
}

impl From<HubError> for RequestFailure {
    fn from(error: HubError) -> RequestFailure {
        if error.is_temporary() { RequestFailure::Temporary(error) } else { RequestFailure::Final(error) }
    }
}

/// The failures of an operation since its last progress.
#[derive(Debug)]
pub(crate) struct HubRetry {
    retry: Retry,
    /// The number of refused signatures.
    refusals: u32,
    /// The number of requests that the host has not answered because of its limit.
    limited: u32,
}

impl HubRetry {
    pub(crate) fn new(policy: RetryPolicy, waiter: Waiter) -> HubRetry {
        HubRetry { retry: Retry::new(policy, waiter), refusals: 0, limited: 0 }
    }

    /// Resets the counts of failures. The caller calls this function when it has received bytes.
    pub(crate) fn progressed(&mut self) {
        self.retry.progressed();
        (self.refusals, self.limited) = (0, 0);
    }

    /// Waits until the time of the next attempt, after `failure`.
    ///
    /// # Errors
    /// Returns the error of `failure` if no further attempt is allowed.
    pub(crate) fn wait(&mut self, failure: RequestFailure) -> Result<(), HubError> {
        let may_retry = match &failure {
            RequestFailure::Final(_) => false,
            RequestFailure::Expired(_) => {
                self.refusals += 1;
                // the next attempt gets a new signature without a wait
                self.refusals < 2
            }
            RequestFailure::Temporary(error) => self.retry.wait_after_failure(|retry, seconds| {
                let (next, attempts) = (retry.failures() + 1, retry.policy().attempts.unwrap_or_default());
                format!("{}: attempt {next} of {attempts} in {seconds} s", error.cause())
            }),
            RequestFailure::Limited { wait, .. } => {
                self.limited += 1;
                let wait = wait.unwrap_or_else(|| self.retry.policy().wait_after(self.limited));
                let is_allowed = self.retry.allows(wait);
                if is_allowed {
                    let notice = format!("the hub limits requests: waiting {} s", wait.as_secs());
                    self.retry.wait(&notice, wait + jitter());
                }
                is_allowed
            }
        };
        match failure {
            _ if may_retry => Ok(()),
            RequestFailure::Final(error) | RequestFailure::Temporary(error) | RequestFailure::Expired(error) => {
                Err(error)
            }
            RequestFailure::Limited { host, .. } => Err(HubError::RateLimited { host, waited: self.retry.waited() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    fn retry(policy: RetryPolicy) -> (HubRetry, Log) {
        let log = Log::default();
        let (notices, pauses) = (log.clone(), log.clone());
        let notice = Arc::new(move |text: &str| notices.lock().unwrap().push(text.to_owned()));
        let pause = Arc::new(move |wait: Duration| pauses.lock().unwrap().push(format!("{} s", wait.as_secs())));
        (HubRetry::new(policy, Waiter { pause, notice }), log)
    }

    fn limited(seconds: u64) -> RequestFailure {
        RequestFailure::Limited { host: "hub".to_owned(), wait: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn the_count_of_failures_restarts_after_progress() {
        let unavailable = || HubError::Unavailable { url: "https://hub/x".to_owned(), status: 503 }.into();
        let (mut retry, log) = retry(RetryPolicy { attempts: Some(3), ..HUB_RETRY_POLICY });
        for _ in 0..4 {
            retry.progressed();
            (0..2).for_each(|_| retry.wait(unavailable()).unwrap());
        }
        assert!(matches!(retry.wait(unavailable()), Err(HubError::Unavailable { .. })));
        assert_eq!(log.lock().unwrap().len(), 4 * 2 * 2);
        assert!(log.lock().unwrap()[0].ends_with(": attempt 2 of 3 in 1 s"));
    }

    #[test]
    fn limited_requests_are_no_failures_and_end_after_an_hour() {
        let (mut retry, log) = retry(HUB_RETRY_POLICY);
        for _ in 0..60 {
            retry.wait(limited(56)).unwrap();
        }
        assert_eq!(log.lock().unwrap()[0], "the hub limits requests: waiting 56 s");
        assert_eq!(retry.retry.failures(), 0);
        let error = (0..10).find_map(|_| retry.wait(limited(56)).err()).unwrap();
        assert!(matches!(error, HubError::RateLimited { .. }), "{error}");
        assert!(matches!(retry.wait(limited(u64::MAX)), Err(HubError::RateLimited { .. })));
    }

    #[test]
    fn a_signature_is_renewed_once_without_a_wait() {
        let (mut retry, log) = retry(HUB_RETRY_POLICY);
        let expired = || RequestFailure::Expired(HubError::SignatureRefused { host: "cdn".to_owned(), status: 403 });
        for _ in 0..2 {
            retry.progressed();
            retry.wait(expired()).unwrap();
        }
        assert!(retry.wait(expired()).is_err());
        assert!(log.lock().unwrap().is_empty());
    }
}
