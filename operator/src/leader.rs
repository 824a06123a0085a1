//! Leader election: only the Lease holder reconciles.

use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;

use crate::config::OperatorConfig;

/// Duration of the Lease, and how long before its end it is renewed, in seconds.
const LEASE_DURATION_SECONDS: u64 = 15;
const LEASE_RENEWAL_GRACE_SECONDS: u64 = 5;

/// Starts leader election. Returns whether the Lease is held, as a channel, and the task that renews it.
///
/// # Errors
/// If the Lease can neither be read nor created.
pub(crate) async fn run(
    client: Client,
    config: &OperatorConfig,
) -> Result<(Receiver<bool>, JoinHandle<Result<LeaseManager, LeaseManagerError>>), LeaseManagerError> {
    let manager = LeaseManagerBuilder::new(client, &config.lease)
        .with_namespace(&config.namespace)
        .with_identity(&config.identity)
        .with_duration(LEASE_DURATION_SECONDS)
        .with_grace(LEASE_RENEWAL_GRACE_SECONDS)
        .build()
        .await?;
    Ok(manager.watch().await)
}
