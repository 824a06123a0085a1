//! Decides whether a client retries a failed request, and waits before the retry. The retries of `object_store` are
//! off: they give no notice, and end five minutes after the start of a stream even if the stream makes progress.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ObjectError;

/// A receiver of sentences about waits, such as "s3.amazonaws.com answered 503 (SlowDown): trying again in 2 s".
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// A function that waits for a duration. Tests only add up the durations.
pub type Pause = Arc<dyn Fn(Duration) + Send + Sync>;

/// The limits of a client's retries and waits.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// The longest wait after the first failure. Each further failure doubles the wait.
    pub first_wait: Duration,
    /// The limit of the doubled wait after a failure.
    pub longest_wait: Duration,
    /// The longest sum of consecutive waits without a received byte. After this time, a request fails.
    pub without_progress: Duration,
    /// The number of failed attempts to get credentials from the machine after which a request fails.
    pub credential_attempts: u32,
    /// The timeout for the set-up of a connection.
    pub connect: Duration,
    /// The longest time without a received byte, before and during an answer.
    pub silence: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(30),
            without_progress: Duration::from_secs(300),
            credential_attempts: 3,
            connect: Duration::from_secs(20),
            silence: Duration::from_secs(60),
        }
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
    waited: Duration,
}

impl Retry {
    pub(crate) fn new(patience: Arc<RetryContext>) -> Retry {
        Retry { patience, failures: 0, waited: Duration::ZERO }
    }

    /// Resets the count of failures after received bytes.
    pub(crate) fn progressed(&mut self) {
        (self.failures, self.waited) = (0, Duration::ZERO);
    }

    /// Waits until the time of the next attempt, after `error`.
    ///
    /// # Errors
    /// Returns `error` if no further attempt is allowed.
    pub(crate) fn wait(&mut self, error: ObjectError) -> Result<(), ObjectError> {
        let RetryContext { limits, pause, notice } = &*self.patience;
        self.failures += 1;
        let wait = backoff(limits, self.failures, random());
        let may_help = match error {
            ObjectError::NoCredentials { .. } => self.failures < limits.credential_attempts,
            _ => error.is_temporary() && self.waited + wait <= limits.without_progress,
        };
        if !may_help {
            return Err(error);
        }
        notice(&format!("{}: trying again in {} s", error.cause(), wait.as_secs_f64().ceil()));
        pause(wait);
        self.waited += wait;
        Ok(())
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

    fn retry() -> (Retry, Log) {
        let log = Log::default();
        let (notices, pauses) = (log.clone(), log.clone());
        let notice: Notice = Arc::new(move |text| notices.lock().unwrap().push(text.to_owned()));
        let pause: Pause = Arc::new(move |wait| pauses.lock().unwrap().push(format!("{} s", wait.as_secs())));
        (Retry::new(Arc::new(RetryContext { limits: RetryPolicy::default(), pause, notice })), log)
    }

    fn unavailable() -> ObjectError {
        ObjectError::Unavailable { host: "s3".to_owned(), answer: "503 (SlowDown)".to_owned() }
    }

    #[test]
    fn the_count_of_failures_restarts_after_progress() {
        let (mut retry, log) = retry();
        for _ in 0..20 {
            retry.progressed();
            (0..5).for_each(|_| retry.wait(unavailable()).unwrap());
        }
        assert_eq!(log.lock().unwrap()[0], "s3 answered 503 (SlowDown): trying again in 1 s");
        retry.progressed();
        let error = (0..100).find_map(|_| retry.wait(unavailable()).err()).unwrap();
        assert!(matches!(error, ObjectError::Unavailable { .. }));
        assert!(retry.waited <= Duration::from_secs(300) && retry.waited > Duration::from_secs(250));
    }

    #[test]
    fn what_no_wait_mends_is_returned_at_once() {
        let (mut retry, log) = retry();
        assert!(retry.wait(ObjectError::ClockSkew { host: "s3".to_owned() }).is_err());
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
