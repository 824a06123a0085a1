//! Discovers the PodGroup APIs that the cluster serves. With a PodGroup, a scheduler starts pods as a gang: all of them
//! or none. The discovery runs when the operator builds the template of an attempt, at most once a minute.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use kube::Client;
use stagecoach_api::job::{GangScheduling, condition_reason};

use super::ApplyError;
use crate::build::PodGroupApi;
use crate::observe::BlockingReason;
use crate::sync::lock;

/// The time for which the result of a discovery is cached. The time is limited because an administrator may install or
/// remove a scheduler.
const DISCOVERY_CACHE_TTL: Duration = Duration::from_secs(60);

/// A cache of the PodGroup APIs that the cluster serves.
#[derive(Debug, Default)]
pub(crate) struct PodGroupDiscovery(Mutex<Option<(Instant, Vec<PodGroupApi>)>>);

impl PodGroupDiscovery {
    /// Returns the API with which to create an attempt's PodGroup; `None` for pods that are scheduled one by one.
    ///
    /// # Errors
    /// Returns `Rejected` if the cluster does not serve the API that the job names.
    pub(super) async fn choose(
        &self,
        client: &Client,
        wanted: GangScheduling,
    ) -> Result<Option<PodGroupApi>, ApplyError> {
        let fits = |api: &PodGroupApi| match wanted {
            GangScheduling::None => false,
            GangScheduling::Auto | GangScheduling::Native => matches!(api, PodGroupApi::Native(_)),
            GangScheduling::Volcano => *api == PodGroupApi::Volcano,
            GangScheduling::Coscheduling => *api == PodGroupApi::Coscheduling,
        };
        if wanted == GangScheduling::None {
            return Ok(None);
        }
        let api = self.served_apis(client).await?.into_iter().find(fits);
        if api.is_none() && wanted != GangScheduling::Auto {
            let message = format!(
                "spec.scheduling.gang is {wanted}, and the cluster does not serve the PodGroup API that {wanted} \
                 needs: install this API, or change the field"
            );
            return Err(ApplyError::Rejected(BlockingReason {
                reason: condition_reason::GANG_NOT_SERVED.into(),
                message,
            }));
        }
        Ok(api)
    }

    async fn served_apis(&self, client: &Client) -> kube::Result<Vec<PodGroupApi>> {
        let cached = lock(&self.0).clone();
        if let Some((at, apis)) = cached
            && at.elapsed() < DISCOVERY_CACHE_TTL
        {
            return Ok(apis);
        }
        let groups = client.list_api_groups().await?;
        let versions: Vec<String> =
            groups.groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version).collect();
        let mut served = Vec::new();
        for api in
            PodGroupApi::ALL.into_iter().filter(|api| versions.iter().any(|version| version == api.api_version()))
        {
            let resources = client.list_api_group_resources(api.api_version()).await?;
            if resources.resources.iter().any(|resource| resource.name == "podgroups") {
                served.push(api);
            }
        }
        *lock(&self.0) = Some((Instant::now(), served.clone()));
        Ok(served)
    }
}
