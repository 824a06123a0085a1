//! Identifies, by their field managers, the clients that write an object. Each operator has a different field manager.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::ResourceExt;

use crate::job::RawPipelineJob;
use crate::sync::PerJob;

/// The prefix of an operator's field manager, before the name of the operator.
const PREFIX: &str = "stagecoach-operator:";
/// The longest field manager that the API server accepts, in bytes.
const MAX_BYTES: usize = 128;
/// The age, in seconds, from which this operator ignores a status write of another operator. The age is relative to the
/// last write of this operator. While a job trains, its operator writes the status about every 15 s.
const MAX_AGE_SECONDS: i64 = 300;

/// Returns the field manager of the operator that uses this Lease. The replicas of one operator share a field manager.
pub(crate) fn field_manager(namespace: &str, lease: &str) -> String {
    let mut manager = format!("{PREFIX}{namespace}/{lease}");
    manager.truncate(manager.floor_char_boundary(MAX_BYTES));
    manager
}

/// Returns the operator of this field manager, as `namespace/lease`; `None` if the field manager belongs to another
/// kind of client.
pub(crate) fn operator_of(manager: &str) -> Option<&str> {
    manager.strip_prefix(PREFIX)
}

/// Returns the field manager other than `own` that wrote the object last; `None` if only `own` wrote the object.
pub(super) fn other_writer(metadata: &ObjectMeta, own: &str) -> Option<String> {
    let others = entries(metadata, None).filter(|entry| entry.manager.as_deref() != Some(own));
    others.max_by_key(|entry| seconds(entry))?.manager.clone()
}

fn entries<'m>(metadata: &'m ObjectMeta, subresource: Option<&'m str>) -> impl Iterator<Item = &'m ManagedFieldsEntry> {
    metadata.managed_fields.iter().flatten().filter(move |entry| entry.subresource.as_deref() == subresource)
}

fn seconds(entry: &ManagedFieldsEntry) -> i64 {
    entry.time.as_ref().map_or(0, |time| time.0.as_second())
}

/// The operators, except this one, that write each job's status, according to the watch. Two operators that reconcile
/// the same job detect each other here, even if they have the same settings.
#[derive(Debug, Default)]
pub(crate) struct OtherOperators(PerJob<Vec<String>>);

impl OtherOperators {
    /// Stores the other operators that write the status of `job`, which the watch has delivered.
    pub(crate) fn read(&self, job: &RawPipelineJob, own: &str) {
        let (uid, others) = (job.uid().unwrap_or_default(), other_operators(&job.metadata, own));
        match others.is_empty() {
            true => drop(self.0.lock().remove(&uid)),
            false => drop(self.0.lock().insert(uid, others)),
        }
    }

    /// Returns the other operators of the job with this UID, as `namespace/lease`.
    pub(crate) fn get(&self, uid: &str) -> Vec<String> {
        self.0.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.0.retain(is_live);
    }
}

/// Returns the operators that write the status, except the operator with the field manager `own`. The function compares
/// only times of the API server, because the operator's clock may be wrong.
fn other_operators(metadata: &ObjectMeta, own: &str) -> Vec<String> {
    let all = || entries(metadata, Some("status"));
    let newest_own = all().filter(|entry| entry.manager.as_deref() == Some(own)).map(seconds).max();
    let is_recent = |entry: &&ManagedFieldsEntry| newest_own.is_none_or(|own| seconds(entry) + MAX_AGE_SECONDS > own);
    let managers = all().filter(is_recent).filter_map(|entry| entry.manager.as_deref());
    let mut others: Vec<String> =
        managers.filter(|manager| *manager != own).filter_map(operator_of).map(str::to_owned).collect();
    others.sort_unstable();
    others.dedup();
    others
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OWN: &str = "stagecoach-operator:ml/stagecoach";

    fn metadata(entries: &[(&str, Option<&str>, &str)]) -> ObjectMeta {
        let entry = |(manager, subresource, time): &(&str, Option<&str>, &str)| json!({"manager": manager, "subresource": subresource, "time": format!("2026-01-01T{time}Z")});
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        serde_json::from_value(json!({ "managedFields": entries })).unwrap()
    }

    #[test]
    fn the_last_of_the_other_writers_is_named() {
        let writers = [
            (OWN, None, "00:00:09"),
            ("kubectl-edit", None, "00:00:05"),
            ("mesh-injector", None, "00:00:07"),
            ("kube-controller-manager", Some("status"), "00:00:08"),
        ];
        assert_eq!(other_writer(&metadata(&writers), OWN).as_deref(), Some("mesh-injector"));
        assert_eq!(other_writer(&metadata(&writers[..1]), OWN), None);
        assert_eq!(other_writer(&ObjectMeta::default(), OWN), None);
    }

    #[test]
    fn operators_find_each_other_while_both_write_the_status() {
        let second = "stagecoach-operator:second/stagecoach";
        let others = |entries: &[_]| other_operators(&metadata(entries), OWN);
        assert_eq!(
            others(&[(OWN, Some("status"), "00:10:00"), (second, Some("status"), "00:09:00")]),
            ["second/stagecoach"]
        );
        assert_eq!(
            others(&[(second, Some("status"), "00:09:00")]),
            ["second/stagecoach"],
            "before the first own write"
        );
        assert!(
            others(&[(OWN, Some("status"), "00:10:00"), (second, Some("status"), "00:05:00")]).is_empty(),
            "uninstalled"
        );
        assert!(others(&[(OWN, Some("status"), "00:10:00"), ("kubectl", Some("status"), "00:10:00")]).is_empty());
        assert!(others(&[(second, None, "00:10:00")]).is_empty(), "the spec");
    }

    #[test]
    fn a_field_manager_is_never_too_long() {
        assert_eq!(operator_of(&field_manager("ml", "stagecoach")), Some("ml/stagecoach"));
        assert_eq!(field_manager(&"n".repeat(63), &"l".repeat(253)).len(), MAX_BYTES);
        assert_eq!(operator_of("kubectl"), None);
    }
}
