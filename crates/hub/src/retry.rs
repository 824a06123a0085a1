//! Decides whether a client retries a failed request, and waits before the retry.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::HubError;

/// A receiver of sentences about waits, such as "the hub limits requests: waiting 56 s".
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// A function that waits for a duration. Tests only add up the durations.
pub type Pause = Arc<dyn Fn(Duration) + Send + Sync>;

/// The limits of a client's retries and waits.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// The number of consecutive failures without a received byte after which a request fails.
    pub attempts: u32,
    /// The longest wait after the first failure. Each further failure doubles the wait.
    pub first_wait: Duration,
    /// The limit of the doubled wait after a failure.
    pub longest_wait: Duration,
    /// The longest sum of consecutive waits without a received byte, including waits for rate limits.
    pub without_progress: Duration,
    /// The timeout for the set-up of a connection.
    pub connect: Duration,
    /// The longest time without a received byte, before and during an answer.
    pub silence: Duration,
    /// The largest number of consecutive redirects.
    pub redirects: u32,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            attempts: 7,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(60),
            without_progress: Duration::from_secs(3600),
            connect: Duration::from_secs(20),
            silence: Duration::from_secs(60),
            redirects: 10,
        }
    }
}

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

/// The settings of retries that all requests of a client share.
#[derive(Clone)]
pub(crate) struct RetryContext {
    pub(crate) limits: RetryPolicy,
    pub(crate) pause: Pause,
    pub(crate) notice: Notice,
}

impl fmt::Debug for RetryContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.limits.fmt(formatter)
    }
}

/// The failures of an operation since its last progress.
#[derive(Debug)]
pub(crate) struct Retry {
    patience: Arc<RetryContext>,
    failures: u32,
    refusals: u32,
    limited: u32,
    waited: Duration,
}

impl Retry {
    pub(crate) fn new(patience: Arc<RetryContext>) -> Retry {
        Retry { patience, failures: 0, refusals: 0, limited: 0, waited: Duration::ZERO }
    }

    /// Resets the counts of failures after received bytes.
    pub(crate) fn progressed(&mut self) {
        (self.failures, self.refusals, self.limited, self.waited) = (0, 0, 0, Duration::ZERO);
    }

    /// Waits until the time of the next attempt, after `failure`.
    ///
    /// # Errors
    /// Returns the error of `failure` if no further attempt is allowed.
    pub(crate) fn wait(&mut self, failure: RequestFailure) -> Result<(), HubError> {
        let limits = &self.patience.limits;
        match failure {
            RequestFailure::Final(error) => Err(error),
            RequestFailure::Expired(error) => {
                self.refusals += 1;
                // the next attempt gets a new signature without a wait
                if self.refusals < 2 { Ok(()) } else { Err(error) }
            }
            RequestFailure::Temporary(error) => {
                self.failures += 1;
                let wait = backoff(limits, self.failures, random());
                if self.failures >= limits.attempts || self.waited + wait > limits.without_progress {
                    return Err(error);
                }
                let seconds = wait.as_secs_f64().ceil();
                let (next, attempts) = (self.failures + 1, limits.attempts);
                self.pause(&format!("{}: attempt {next} of {attempts} in {seconds} s", error.cause()), wait);
                Ok(())
            }
            RequestFailure::Limited { host, wait } => {
                self.limited += 1;
                let wait = wait.unwrap_or_else(|| backoff(limits, self.limited, random()));
                if self.waited.saturating_add(wait) > limits.without_progress {
                    return Err(HubError::RateLimited { host, waited: self.waited });
                }
                let notice = format!("the hub limits requests: waiting {} s", wait.as_secs());
                // the jitter keeps waiting clients from a retry at the same moment
                self.pause(&notice, wait + Duration::from_secs(1).mul_f64(random()));
                Ok(())
            }
        }
    }

    fn pause(&mut self, notice: &str, wait: Duration) {
        (self.patience.notice)(notice);
        (self.patience.pause)(wait);
        self.waited += wait;
    }
}

/// Returns the wait after `failures` consecutive failures. The wait grows exponentially. `chance`, from 0 to 1, selects
/// a wait between half and all of that time.
fn backoff(limits: &RetryPolicy, failures: u32, chance: f64) -> Duration {
    let doubled = limits.first_wait.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(limits.longest_wait).mul_f64(0.5 + chance / 2.0)
}

/// Returns a random number from 0 to 1.
fn random() -> f64 {
    // if the system has no randomness, each wait has its full length
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    fn retry(limits: RetryPolicy) -> (Retry, Log) {
        let log = Log::default();
        let (notices, pauses) = (log.clone(), log.clone());
        let notice: Notice = Arc::new(move |text| notices.lock().unwrap().push(text.to_owned()));
        let pause: Pause = Arc::new(move |wait| pauses.lock().unwrap().push(format!("{} s", wait.as_secs())));
        (Retry::new(Arc::new(RetryContext { limits, pause, notice })), log)
    }

    fn unavailable() -> HubError {
        HubError::Unavailable { url: "https://hub/x".to_owned(), status: 503 }
    }

    fn limited(seconds: u64) -> RequestFailure {
        RequestFailure::Limited { host: "hub".to_owned(), wait: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn the_count_of_failures_restarts_after_progress() {
        let (mut retry, log) = retry(RetryPolicy { attempts: 3, ..RetryPolicy::default() });
        for _ in 0..4 {
            retry.progressed();
            (0..2).for_each(|_| retry.wait(unavailable().into()).unwrap());
        }
        assert!(matches!(retry.wait(unavailable().into()), Err(HubError::Unavailable { .. })));
        assert_eq!(log.lock().unwrap().len(), 4 * 2 * 2);
        assert!(log.lock().unwrap()[0].ends_with(": attempt 2 of 3 in 1 s"));
    }

    #[test]
    fn limited_requests_are_no_failures_and_end_after_an_hour() {
        let (mut retry, log) = retry(RetryPolicy::default());
        for _ in 0..60 {
            retry.wait(limited(56)).unwrap();
        }
        assert_eq!(log.lock().unwrap()[0], "the hub limits requests: waiting 56 s");
        assert_eq!(retry.failures, 0);
        let error = (0..10).find_map(|_| retry.wait(limited(56)).err()).unwrap();
        assert!(matches!(error, HubError::RateLimited { .. }), "{error}");
        assert!(matches!(retry.wait(limited(u64::MAX)), Err(HubError::RateLimited { .. })));
    }

    #[test]
    fn a_signature_is_renewed_once_without_a_wait() {
        let (mut retry, log) = retry(RetryPolicy::default());
        let expired = || RequestFailure::Expired(HubError::SignatureRefused { host: "cdn".to_owned(), status: 403 });
        for _ in 0..2 {
            retry.progressed();
            retry.wait(expired()).unwrap();
        }
        assert!(retry.wait(expired()).is_err());
        assert!(log.lock().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn waits_double_up_to_a_bound(failures in 1_u32..100, chance in 0.0..=1.0) {
            let limits = RetryPolicy::default();
            let wait = backoff(&limits, failures, chance);
            let longest = limits.longest_wait.min(Duration::from_secs(1 << (failures - 1).min(6)));
            prop_assert!(longest / 2 <= wait && wait <= longest);
        }
    }
}
