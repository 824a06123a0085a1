//! Decides whether the client retries a failed request, and waits before the retry. The retries of `object_store` are
//! off: they give no notice, and end five minutes after the start of a stream even if the stream makes progress.

use std::time::Duration;

use stagecoach_remote::{Retry, RetryPolicy};

use crate::error::ObjectError;

/// The limits of the clients of object stores.
pub const OBJECT_RETRY_POLICY: RetryPolicy = RetryPolicy {
    first_wait: Duration::from_secs(1),
    longest_wait: Duration::from_secs(30),
    without_progress: Duration::from_secs(300),
    attempts: None,
    connect: Duration::from_secs(20),
    silence: Duration::from_secs(60),
};

/// The number of failed attempts to get credentials from the machine after which a request fails.
const CREDENTIAL_ATTEMPTS: u32 = 3;

/// Waits until the time of the next attempt, after `error`.
///
/// # Errors
/// Returns `error` if no further attempt is allowed.
pub(crate) fn wait_to_retry(retry: &mut Retry, error: ObjectError) -> Result<(), ObjectError> {
    let may_help = match error {
        ObjectError::NoCredentials { .. } => retry.failures() + 1 < CREDENTIAL_ATTEMPTS,
        _ => error.is_temporary(),
    };
    let notice = |_: &Retry, seconds| format!("{}: trying again in {seconds} s", error.cause());
    if may_help && retry.wait_after_failure(notice) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use stagecoach_remote::Waiter;

    use super::*;

    #[test]
    fn only_a_failure_that_may_pass_is_waited_for() {
        let log = Arc::<Mutex<Vec<String>>>::default();
        let notices = log.clone();
        let notice = Arc::new(move |text: &str| notices.lock().unwrap().push(text.to_owned()));
        let mut retry = Retry::new(OBJECT_RETRY_POLICY, Waiter { pause: Arc::new(|_| ()), notice });
        assert!(wait_to_retry(&mut retry, ObjectError::ClockSkew { host: "s3".to_owned() }).is_err());
        assert!(log.lock().unwrap().is_empty());

        let unavailable = || ObjectError::Unavailable { host: "s3".to_owned(), answer: "503 (SlowDown)".to_owned() };
        wait_to_retry(&mut retry, unavailable()).unwrap();
        assert_eq!(*log.lock().unwrap(), ["s3 answered 503 (SlowDown): trying again in 1 s"]);
        let error = (0..100).find_map(|_| wait_to_retry(&mut retry, unavailable()).err()).unwrap();
        assert!(matches!(error, ObjectError::Unavailable { .. }));
    }
}
