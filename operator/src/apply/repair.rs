//! Repairs the objects of a job other than its pods. The operator restores objects that another client deleted or
//! changed, and removes objects that the job does not need.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Preconditions};
use kube::core::PartialObjectMeta;
use stagecoach_api::job::NetworkPolicyMode;
use stagecoach_lifecycle::{Attempt, AttemptPhase, JobState};

use super::create::{create_or_update, create_owned};
use super::start::attempt_template;
use super::{ApplyContext, ApplyError};
use crate::build;
use crate::observe::{ChangedObject, KnownObject, OwnedKind, OwnedObject};

/// A repair of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Create the object again, or undo its changes.
    Restore(ChangedObject),
    /// Delete the object, which the job does not need.
    Remove(KnownObject),
}

/// Returns the repairs that the job needs in this state.
pub(crate) fn repairs(context: &ApplyContext<'_>, state: &JobState) -> Vec<Repair> {
    let job = context.job;
    let (reference, attempt, objects) = (&job.reference, state.attempt, context.owned_objects);
    let known = |kind, name: &str| objects.get(&reference.uid, kind, name);
    let restore = |kind, name: &str, fingerprint| {
        let (differs, changed_by) = match known(kind, name) {
            Some(known) => (!known.is_as(fingerprint), known.other_writer),
            None => (objects.is_synced(kind, &reference.namespace), None),
        };
        differs.then(|| Repair::Restore(ChangedObject { kind, name: name.to_owned(), changed_by }))
    };
    let remove = |kind, name: &str| known(kind, name).map(Repair::Remove);
    // while an attempt is being created, `start` creates its objects, so they need no repair
    let runs = matches!(state.attempt_phase, AttemptPhase::Running { all_created: true, .. });
    let is_draining = state.attempt_phase == AttemptPhase::Draining;
    let is_over = matches!(state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Finished(_));

    let service = build::service(reference, attempt.number, attempt.mesh);
    let service = match runs || is_draining {
        true => restore(OwnedKind::Service, &reference.name, service.fingerprint()),
        // stages need the Service while they save; after their exit, the Service would only occupy a ClusterIP
        false if is_over && context.pods.all_exited() => remove(OwnedKind::Service, &reference.name),
        false => None,
    };
    let policy = match job.manifest.spec.network_policy.mode {
        NetworkPolicyMode::None => remove(OwnedKind::NetworkPolicy, &reference.name),
        NetworkPolicyMode::Restricted if runs || is_draining => {
            let policy = build::network_policy(reference, context.peers);
            restore(OwnedKind::NetworkPolicy, &reference.name, policy.fingerprint())
        }
        NetworkPolicyMode::Restricted => None,
    };
    // after an edit of the spec, restore no ConfigMap: the next attempt has a new ConfigMap
    let desired = job.desired();
    let is_current = (desired.revision, desired.mesh) == (attempt.revision, attempt.mesh);
    let name = build::attempt_name(reference, attempt.number);
    let config_map = (runs && is_current).then(|| restore(OwnedKind::ConfigMap, &name, 0)).flatten();
    [service, policy, config_map].into_iter().flatten().collect()
}

/// Makes one repair. If the repair restores an object, the function builds the object for `attempt`.
///
/// # Errors
/// Returns the error of the API server. Returns `Rejected` if an object that the job does not own has the same name.
pub(crate) async fn repair(context: &ApplyContext<'_>, attempt: Attempt, repair: &Repair) -> Result<(), ApplyError> {
    let ApplyContext { job, clients, .. } = *context;
    let reference = &job.reference;
    tracing::info!(job = reference.name, namespace = reference.namespace, ?repair, "repairing an object of the job");
    match repair {
        Repair::Remove(known) => {
            let api = match known.kind {
                OwnedKind::Service => &clients.services,
                OwnedKind::NetworkPolicy => &clients.network_policies,
                OwnedKind::ConfigMap => &clients.config_maps,
            };
            // delete only this object, not a later object of the same name
            let preconditions = Preconditions { uid: Some(known.uid.clone()), ..Preconditions::default() };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match api.delete(&known.name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                other => Ok(other?),
            }
        }
        Repair::Restore(object) => restore(context, attempt, object.kind).await,
    }
}

async fn restore(context: &ApplyContext<'_>, attempt: Attempt, kind: OwnedKind) -> Result<(), ApplyError> {
    let ApplyContext { job, clients, .. } = *context;
    let reference = &job.reference;
    match kind {
        OwnedKind::Service => {
            let service = build::service(reference, attempt.number, attempt.mesh);
            create_or_update(context, &clients.services, &service, false).await
        }
        OwnedKind::NetworkPolicy => {
            let policy = build::network_policy(reference, context.peers);
            create_or_update(context, &clients.network_policies, &policy, false).await
        }
        OwnedKind::ConfigMap => {
            let config_map = attempt_template(context, attempt).await?.to_config_map(reference);
            let stored: PartialObjectMeta<ConfigMap> =
                create_owned(&clients.config_maps, reference, &config_map).await?;
            context.add_known(context.known(&stored));
            Ok(())
        }
    }
}
