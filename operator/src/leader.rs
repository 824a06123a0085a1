//! Leader election: only the holder of the Lease reconciles.
//!
//! The election never compares the clocks of two replicas. A candidate takes the Lease when, by the candidate's own
//! clock, the Lease has not changed for the duration of the Lease. A holder that can't renew the Lease stops before
//! this duration is over. Every write is conditional on the resourceVersion that was read, so that only one of several
//! candidates succeeds.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::config::OperatorConfig;

/// The time for which the Lease is valid without a renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The interval between two renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// The time after the last renewal at which the holder stops, before another replica may take the Lease.
const RENEW_DEADLINE: Duration = Duration::from_secs(12);
/// The wait after a failed request.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The Lease that this replica holds.
pub(crate) struct HeldLease {
    leases: Api<Lease>,
    lease: Lease,
    /// The time at which the request of the last successful renewal was sent.
    renewed: Instant,
}

/// A replica that waits for the Lease.
struct LeaderElector {
    identity: String,
    /// The Lease that was observed last. `None` before the first observation; `Some(None)` if the Lease does not exist.
    seen: Option<Option<Lease>>,
    /// The time since which the holder and the renewal time of the Lease are unchanged, by this replica's clock.
    since: Instant,
}

impl LeaderElector {
    fn new(identity: &str, now: Instant) -> LeaderElector {
        LeaderElector { identity: identity.to_owned(), seen: None, since: now }
    }

    fn see(&mut self, lease: Option<Lease>, now: Instant) {
        let renewal = |lease: &Option<Lease>| {
            let spec = lease.as_ref()?.spec.as_ref()?;
            Some((spec.holder_identity.clone(), spec.renew_time.clone(), spec.acquire_time.clone()))
        };
        if self.seen.as_ref().is_none_or(|seen| renewal(seen) != renewal(&lease)) {
            self.since = now;
        }
        self.seen = Some(lease);
    }

    /// Returns the time at which this replica may take the Lease, unless the Lease changes before that time. Returns
    /// `None` before the first observation.
    fn may_take_at(&self) -> Option<Instant> {
        let spec = self.seen.as_ref()?.as_ref().and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return Some(self.since);
        }
        let seconds = spec.and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok());
        Some(self.since + seconds.map_or(LEASE_DURATION, Duration::from_secs))
    }

    /// Returns the Lease with this replica as its holder.
    fn taken(&self, name: &str) -> Lease {
        let mut lease = self.seen.clone().flatten().unwrap_or_default();
        lease.metadata = ObjectMeta { name: Some(name.to_owned()), ..lease.metadata };
        let before = lease.spec.unwrap_or_default();
        let changes = before.holder_identity.as_ref() != Some(&self.identity);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: Some(now()),
            renew_time: Some(now()),
            lease_transitions: Some(before.lease_transitions.unwrap_or_default().saturating_add(changes.into())),
            ..before
        });
        lease
    }
}

/// Waits for the Lease and takes it. Logs errors of the API server and repeats the request.
pub(crate) async fn acquire(client: Client, config: &OperatorConfig) -> HeldLease {
    let leases: Api<Lease> = Api::namespaced(client, &config.namespace);
    let mut watched = pin!(watch_object(leases.clone(), &config.lease).default_backoff());
    let mut candidate = LeaderElector::new(&config.identity, Instant::now());
    loop {
        let event = match candidate.may_take_at() {
            Some(at) => timeout_at(at, watched.next()).await.ok(),
            None => Some(watched.next().await),
        };
        match event {
            Some(Some(Ok(lease))) => candidate.see(lease, Instant::now()),
            Some(Some(Err(error))) => tracing::warn!(lease = config.lease, "the Lease can't be watched: {error}"),
            Some(None) => sleep(RETRY_DELAY).await,
            None => {}
        }
        let started = Instant::now();
        if candidate.may_take_at().is_none_or(|at| at > started) {
            continue;
        }
        let wanted = candidate.taken(&config.lease);
        let is_there = matches!(candidate.seen, Some(Some(_)));
        let taken = match is_there {
            true => leases.replace(&config.lease, &PostParams::default(), &wanted).await,
            false => leases.create(&PostParams::default(), &wanted).await,
        };
        match taken {
            Ok(lease) => return HeldLease { leases, lease, renewed: started },
            // another candidate was faster, or the holder renewed the Lease and the watch is late
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => tracing::warn!(lease = config.lease, "the Lease can't be taken: {error}"),
        }
        sleep(RETRY_DELAY).await;
        if let Ok(lease) = leases.get_opt(&config.lease).await {
            candidate.see(lease, Instant::now());
        }
    }
}

/// The reason why a renewal failed.
enum RenewError {
    /// Another replica holds the Lease, or the Lease was deleted.
    Lost,
    Api(kube::Error),
}

impl HeldLease {
    /// Renews the Lease until the Lease is lost. Returns the reason for the loss.
    pub(crate) async fn keep(&mut self) -> String {
        loop {
            sleep_until(self.renewed + RENEW_INTERVAL).await;
            let deadline = self.renewed + RENEW_DEADLINE;
            loop {
                let started = Instant::now();
                match timeout_at(deadline, self.renew()).await {
                    Ok(Ok(())) => {
                        self.renewed = started;
                        break;
                    }
                    Ok(Err(RenewError::Lost)) => return "another replica holds it, or it was deleted".to_owned(),
                    Ok(Err(RenewError::Api(error))) => tracing::warn!("the Lease can't be renewed: {error}"),
                    Err(_) => return format!("it could not be renewed within {} s", RENEW_DEADLINE.as_secs()),
                }
                sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Releases the Lease, so that another replica can take it at once.
    ///
    /// # Errors
    /// Returns the error of the API server, unless the Lease is already lost.
    pub(crate) async fn release(mut self) -> kube::Result<()> {
        let released = |spec: &mut LeaseSpec| {
            spec.holder_identity = None;
            spec.renew_time = Some(now());
        };
        match self.write(released).await {
            Err(RenewError::Api(error)) => Err(error),
            Ok(()) | Err(RenewError::Lost) => Ok(()),
        }
    }

    async fn renew(&mut self) -> Result<(), RenewError> {
        self.write(|spec| spec.renew_time = Some(now())).await
    }

    /// Writes the Lease with a change. If another client has written the Lease since the last read, the function reads
    /// the Lease again and repeats the write. A change by another client that keeps the holder, such as a new
    /// annotation, does not lose the Lease.
    async fn write(&mut self, change: impl Fn(&mut LeaseSpec)) -> Result<(), RenewError> {
        let name = self.lease.metadata.name.clone().unwrap_or_default();
        let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        loop {
            let mut changed = self.lease.clone();
            change(changed.spec.get_or_insert_default());
            match self.leases.replace(&name, &PostParams::default(), &changed).await {
                Ok(lease) => {
                    self.lease = lease;
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(RenewError::Lost),
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let stored = self.leases.get_opt(&name).await.map_err(RenewError::Api)?;
                    let ours = stored.filter(|stored| holder(stored) == holder(&self.lease));
                    self.lease = ours.ok_or(RenewError::Lost)?;
                }
                Err(error) => return Err(RenewError::Api(error)),
            }
        }
    }
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns a Lease that `holder` holds and renewed at the time `renewed`, in Unix seconds of the holder's clock.
    fn lease(holder: &str, renewed: i64) -> Option<Lease> {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        };
        Some(Lease { spec: Some(spec), ..Lease::default() })
    }

    #[test]
    fn only_what_was_seen_when_counts_and_no_clock_of_another() {
        let start = Instant::now();
        for skew in [-3600, 0, 3600] {
            let base = Timestamp::now().as_second() + skew;
            let mut candidate = LeaderElector::new("b", start);
            assert_eq!(candidate.may_take_at(), None, "the Lease was not observed yet");
            candidate.see(lease("a", base), start);
            assert_eq!(candidate.may_take_at(), Some(start + 15 * SECOND), "skew {skew}");
            candidate.see(lease("a", base), start + 7 * SECOND);
            assert_eq!(candidate.may_take_at(), Some(start + 15 * SECOND), "it was not renewed");
            candidate.see(lease("a", base + 10), start + 10 * SECOND);
            assert_eq!(candidate.may_take_at(), Some(start + 25 * SECOND));
        }
    }

    #[test]
    fn a_lease_that_is_free_or_ones_own_is_taken_at_once() {
        let start = Instant::now();
        for free in [None, lease("", 0), lease("b", 0)] {
            let mut candidate = LeaderElector::new("b", start);
            candidate.see(lease("a", 5), start);
            candidate.see(free, start + SECOND);
            assert_eq!(candidate.may_take_at(), Some(start + SECOND));
            let spec = candidate.taken("lease").spec.unwrap();
            assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("b"), Some(15)));
        }
    }
}
