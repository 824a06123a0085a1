//! Which schedulers' PodGroups the cluster serves: asked when an attempt starts, and no more than once a minute.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use stagecoach_api::job::Gang as Wanted;

use super::ApplyError;
use crate::build::Gang;
use crate::observe::Trouble;

/// For how long an answer holds: schedulers come and go with installations.
const HOLDS: Duration = Duration::from_secs(60);

/// What the cluster serves.
#[derive(Debug, Default)]
pub(crate) struct Gangs(Mutex<Option<(Instant, Vec<Gang>)>>);

impl Gangs {
    /// Whose PodGroup an attempt gets; none for pods that are scheduled one by one.
    ///
    /// # Errors
    /// `Refused` if the cluster does not serve what the job names.
    pub(super) async fn choose(&self, client: &Client, wanted: Wanted) -> Result<Option<Gang>, ApplyError> {
        let fits = |gang: &Gang| match wanted {
            Wanted::None => false,
            Wanted::Auto | Wanted::Native => matches!(gang, Gang::Native(_)),
            Wanted::Volcano => *gang == Gang::Volcano,
            Wanted::Coscheduling => *gang == Gang::Coscheduling,
        };
        if wanted == Wanted::None {
            return Ok(None);
        }
        let gang = self.served(client).await?.into_iter().find(fits);
        if gang.is_none() && wanted != Wanted::Auto {
            let message = format!(
                "spec.scheduling.gang is {wanted}, and the cluster serves no PodGroup of it: install it, or change the field"
            );
            return Err(ApplyError::Refused(Trouble { reason: "GangNotServed".into(), message }));
        }
        Ok(gang)
    }

    async fn served(&self, client: &Client) -> kube::Result<Vec<Gang>> {
        let known = self.known().clone();
        if let Some((at, gangs)) = known
            && at.elapsed() < HOLDS
        {
            return Ok(gangs);
        }
        let groups = client.list_api_groups().await?;
        let versions: Vec<String> =
            groups.groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version).collect();
        let mut served = Vec::new();
        for gang in Gang::ALL.into_iter().filter(|gang| versions.iter().any(|version| version == gang.api_version())) {
            let resources = client.list_api_group_resources(gang.api_version()).await?;
            if resources.resources.iter().any(|resource| resource.name == "podgroups") {
                served.push(gang);
            }
        }
        *self.known() = Some((Instant::now(), served.clone()));
        Ok(served)
    }

    fn known(&self) -> MutexGuard<'_, Option<(Instant, Vec<Gang>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
