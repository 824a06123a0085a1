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
