//! Decides whether the client retries a failed request, and waits before the retry. The retries of `object_store` are
//! off: they give no notice, and end five minutes after the start of a stream even if the stream makes progress.

use std::time::Duration;

use stagecoach_remote::{Retry, RetryPolicy};

use crate::error::ObjectError;

/// The limits of retries and waits for the clients of object stores.
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

    type Log = Arc<Mutex<Vec<String>>>;

    fn retry() -> (Retry, Log) {
        let log = Log::default();
        let (notices, pauses) = (log.clone(), log.clone());
        let notice = Arc::new(move |text: &str| notices.lock().unwrap().push(text.to_owned()));
        let pause = Arc::new(move |wait: Duration| pauses.lock().unwrap().push(format!("{} s", wait.as_secs())));
        (Retry::new(OBJECT_RETRY_POLICY, Waiter { pause, notice }), log)
    }

    fn unavailable() -> ObjectError {
        ObjectError::Unavailable { host: "s3".to_owned(), answer: "503 (SlowDown)".to_owned() }
    }

    #[test]
    fn the_count_of_failures_restarts_after_progress() {
        let (mut retry, log) = retry();
        for _ in 0..20 {
            retry.progressed();
            (0..5).for_each(|_| wait_to_retry(&mut retry, unavailable()).unwrap());
        }
        assert_eq!(log.lock().unwrap()[0], "s3 answered 503 (SlowDown): trying again in 1 s");
        retry.progressed();
        let error = (0..100).find_map(|_| wait_to_retry(&mut retry, unavailable()).err()).unwrap();
        assert!(matches!(error, ObjectError::Unavailable { .. }));
        assert!(retry.waited() <= Duration::from_secs(300) && retry.waited() > Duration::from_secs(250));
    }

    #[test]
    fn what_no_wait_mends_is_returned_at_once() {
        let (mut retry, log) = retry();
        assert!(wait_to_retry(&mut retry, ObjectError::ClockSkew { host: "s3".to_owned() }).is_err());
        assert!(log.lock().unwrap().is_empty());
    }
}
