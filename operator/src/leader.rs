//! One replica works at a time: the one that holds the Lease.

use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;

use crate::settings::Settings;

/// Seconds for which the Lease is held, and before whose end it is renewed.
const DURATION: u64 = 15;
const GRACE: u64 = 5;

/// Runs for the Lease: what tells whether it is held, and the task that keeps it.
///
/// # Errors
/// If the Lease can neither be read nor made.
pub(crate) async fn run(
    client: Client,
    settings: &Settings,
) -> Result<(Receiver<bool>, JoinHandle<Result<LeaseManager, LeaseManagerError>>), LeaseManagerError> {
    let manager = LeaseManagerBuilder::new(client, &settings.lease)
        .with_namespace(&settings.namespace)
        .with_identity(&settings.identity)
        .with_duration(DURATION)
        .with_grace(GRACE)
        .build()
        .await?;
    Ok(manager.watch().await)
}
