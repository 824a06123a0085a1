//! Limits the retries of failed requests, and waits between the attempts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A receiver of sentences about waits, such as "the hub limits requests: waiting 56 s".
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// A function that waits for a duration. Tests use a function that returns at once.
pub type Pause = Arc<dyn Fn(Duration) + Send + Sync>;

/// The functions that a client calls when it waits.
#[derive(Clone)]
pub struct Waiter {
    /// Waits for the given time.
    pub pause: Pause,
    /// Receives the reason for the next wait.
    pub notice: Notice,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Waiter").finish_non_exhaustive()
    }
}

/// The limits of a client's retries and waits.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// The longest wait after the first failure. Each further failure doubles the wait.
    pub first_wait: Duration,
    /// The longest wait after any failure, at which the doubling ends.
    pub longest_wait: Duration,
    /// The longest sum of consecutive waits without a received byte, including waits for rate limits. After this time,
    /// a request fails.
    pub without_progress: Duration,
    /// The number of consecutive failures without a received byte after which a request fails. `None`: only the time
    /// limits the attempts.
    pub attempts: Option<u32>,
    /// The timeout for the set-up of a connection.
    pub connect: Duration,
    /// The longest time without a received byte, before and during an answer.
    pub silence: Duration,
}

impl RetryPolicy {
    /// Returns the wait after `failures` consecutive failures: a random time between half and all of the doubled wait.
    pub fn wait_after(&self, failures: u32) -> Duration {
        self.backoff(failures, random())
    }

    /// Returns the wait after `failures` consecutive failures. The bound of the wait doubles with each failure, up to
    /// `longest_wait`. `chance`, from 0 to 1, selects a wait between half of the bound and the bound.
    fn backoff(&self, failures: u32, chance: f64) -> Duration {
        let doubled = self.first_wait.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
        doubled.min(self.longest_wait).mul_f64(0.5 + chance / 2.0)
    }
}

/// The failures and waits of an operation since its last progress.
#[derive(Debug)]
pub struct Retry {
    policy: RetryPolicy,
    waiter: Waiter,
    failures: u32,
    waited: Duration,
}

impl Retry {
    /// Returns the state of an operation that has not failed.
    pub fn new(policy: RetryPolicy, waiter: Waiter) -> Retry {
        Retry { policy, waiter, failures: 0, waited: Duration::ZERO }
    }

    /// The limits of the retries.
    pub fn policy(&self) -> &RetryPolicy {
        &self.policy
    }

    /// The number of failures since the last progress.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The sum of the waits since the last progress.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Resets the failures and waits after received bytes.
    pub fn progressed(&mut self) {
        (self.failures, self.waited) = (0, Duration::ZERO);
    }

    /// Counts a failure, and waits before the next attempt. `notice` receives this state and the wait in seconds, and
    /// returns the sentence about the wait. Returns whether the policy allows another attempt. If not, this function
    /// does not wait.
    pub fn wait_after_failure(&mut self, notice: impl FnOnce(&Retry, f64) -> String) -> bool {
        self.failures += 1;
        let wait = self.policy.wait_after(self.failures);
        if self.policy.attempts.is_some_and(|attempts| self.failures >= attempts) || !self.allows(wait) {
            return false;
        }
        let notice = notice(self, wait.as_secs_f64().ceil());
        self.wait(&notice, wait);
        true
    }

    /// Whether the policy allows a further wait of this length.
    pub fn allows(&self, wait: Duration) -> bool {
        self.waited.saturating_add(wait) <= self.policy.without_progress
    }

    /// Waits, after a notice about the wait.
    pub fn wait(&mut self, notice: &str, wait: Duration) {
        (self.waiter.notice)(notice);
        (self.waiter.pause)(wait);
        self.waited += wait;
    }
}

/// Returns a random time of at most one second. The jitter keeps waiting clients from a retry at the same moment.
pub fn jitter() -> Duration {
    Duration::from_secs(1).mul_f64(random())
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

    const POLICY: RetryPolicy = RetryPolicy {
        first_wait: Duration::from_secs(1),
        longest_wait: Duration::from_secs(30),
        without_progress: Duration::from_secs(300),
        attempts: None,
        connect: Duration::from_secs(20),
        silence: Duration::from_secs(60),
    };

    fn retry(policy: RetryPolicy) -> (Retry, Arc<Mutex<Vec<String>>>) {
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (notices, pauses) = (log.clone(), log.clone());
        let notice: Notice = Arc::new(move |text| notices.lock().unwrap().push(text.to_owned()));
        let pause: Pause = Arc::new(move |wait| pauses.lock().unwrap().push(format!("{} s", wait.as_secs())));
        (Retry::new(policy, Waiter { pause, notice }), log)
    }

    fn fail(retry: &mut Retry) -> bool {
        retry.wait_after_failure(|retry, seconds| format!("failure {}: {seconds} s", retry.failures()))
    }

    #[test]
    fn attempts_are_limited_between_two_progresses() {
        let (mut retry, log) = retry(RetryPolicy { attempts: Some(3), ..POLICY });
        for _ in 0..4 {
            retry.progressed();
            assert!(fail(&mut retry) && fail(&mut retry));
        }
        assert!(!fail(&mut retry));
        assert_eq!(log.lock().unwrap().len(), 4 * 2 * 2);
        assert_eq!(log.lock().unwrap()[0], "failure 1: 1 s");
    }

    #[test]
    fn waits_are_limited_between_two_progresses() {
        let (mut retry, _) = retry(POLICY);
        for _ in 0..20 {
            retry.progressed();
            (0..5).for_each(|_| assert!(fail(&mut retry)));
        }
        assert!((0..100).any(|_| !fail(&mut retry)));
        assert!(retry.waited() <= Duration::from_secs(300) && retry.waited() > Duration::from_secs(250));
        assert!(!retry.allows(Duration::MAX));
    }

    proptest! {
        #[test]
        fn waits_double_up_to_a_bound(failures in 1_u32..100, chance in 0.0..=1.0, longest in 30_u64..=60) {
            let policy = RetryPolicy { longest_wait: Duration::from_secs(longest), ..POLICY };
            let wait = policy.backoff(failures, chance);
            let longest = policy.longest_wait.min(Duration::from_secs(1 << (failures - 1).min(6)));
            prop_assert!(longest / 2 <= wait && wait <= longest);
        }
    }
}
