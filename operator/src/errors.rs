//! The errors of a reconcile, and the delays before its retry.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use stagecoach_lifecycle::backoff_delay;

use crate::context::Context;
use crate::job::RawPipelineJob;

/// The time limit of one reconcile. Every write is safe to repeat, so the operator can safely repeat an aborted
/// reconcile.
pub(crate) const RECONCILE_TIMEOUT: Duration = Duration::from_secs(10);
/// The retry delay after a conflict. The watch delivers the newer version within milliseconds.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// The retry delay after the first error that is not a conflict. The delay doubles with each further error.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(500);
/// The longest retry delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(8);

/// The reason why a reconcile failed. The operator retries the reconcile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    /// The API server took too long.
    #[error("no answer within {} s", RECONCILE_TIMEOUT.as_secs())]
    Timeout,
    /// The stored job differs from the job that the reconcile has read.
    #[error("the job changed during the reconcile")]
    Conflict,
    /// An error of the API server, or of the connection to it.
    #[error("{}", describe_api_error(.0))]
    Api(#[from] kube::Error),
    /// An object that the job does not own has the name of an object that the job needs.
    #[error("{0}")]
    NameTaken(String),
    /// A defect of the operator.
    #[error("the operator has a defect: {0}")]
    Panicked(String),
}

impl ReconcileError {
    /// Returns the value of the label `reason` of `stagecoach_reconcile_errors_total`.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            ReconcileError::Timeout => "Late",
            ReconcileError::Panicked(_) => "Panicked",
            ReconcileError::Conflict => "Conflict",
            ReconcileError::Api(kube::Error::Api(status)) if status.code == 409 => "Conflict",
            ReconcileError::Api(kube::Error::Api(_)) | ReconcileError::NameTaken(_) => "Refused",
            ReconcileError::Api(_) => "Unreachable",
        }
    }
}

/// Returns the status and the message of the API server, or the text of an error that came from elsewhere.
fn describe_api_error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            format!("the API server answered {} {}: {}", status.code, status.reason, status.message)
        }
        other => other.to_string(),
    }
}

/// Runs the reconcile of one job. The function returns a panic as an error of that job, because a panic must not end
/// the operator, which serves all jobs.
pub(crate) async fn catch_panic<T>(
    reconcile: impl Future<Output = Result<T, ReconcileError>>,
) -> Result<T, ReconcileError> {
    AssertUnwindSafe(reconcile).catch_unwind().await.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(ReconcileError::Panicked(message.unwrap_or("a panic without a message").to_owned()))
    })
}

/// Returns the delay after which the controller retries a failed reconcile.
pub(crate) fn error_policy(object: Arc<RawPipelineJob>, error: &ReconcileError, context: Arc<Context>) -> Action {
    if error.reason() == "Conflict" {
        return Action::requeue(CONFLICT_RETRY_DELAY);
    }
    let failures = context.with_cache(&object.uid().unwrap_or_default(), |cache| {
        cache.api_failures = cache.api_failures.saturating_add(1);
        cache.api_failures
    });
    let delay = backoff_delay(INITIAL_RETRY_DELAY, MAX_RETRY_DELAY, failures);
    tracing::warn!(job = object.name_any(), namespace = object.namespace(), ?delay, "reconcile failed: {error}");
    Action::requeue(delay)
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    /// The reasons are labels of a metric, and alerts refer to them.
    #[test]
    fn reasons_of_errors_never_change() {
        let api = |code: u16| {
            let answer = serde_json::json!({"status": "Failure", "message": "m", "reason": "r", "code": code});
            ReconcileError::Api(kube::Error::Api(serde_json::from_value(answer).unwrap()))
        };
        for (error, expected) in [
            (ReconcileError::Timeout, "Late"),
            (ReconcileError::Panicked(String::new()), "Panicked"),
            (ReconcileError::Conflict, "Conflict"),
            (api(409), "Conflict"),
            (api(403), "Refused"),
            (ReconcileError::Api(kube::Error::LinesCodecMaxLineLengthExceeded), "Unreachable"),
        ] {
            assert_eq!(error.reason(), expected);
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_job_it_came_from() {
        let result = catch_panic(async { Ok::<_, ReconcileError>(7) }).await;
        assert!(matches!(result, Ok(7)));
        for (message, literal) in [("index 3 of 2", false), ("a defect", true)] {
            let failed = catch_panic::<()>(async move {
                tokio::task::yield_now().await;
                if literal { panic!("a defect") } else { panic!("{message}") }
            });
            let error = failed.await.unwrap_err();
            assert_eq!(error.reason(), "Panicked");
            assert!(error.to_string().ends_with(message), "{error}");
        }
    }
}
