//! The Services, NetworkPolicies and ConfigMaps of the jobs, as the watch delivers them and as this operator wrote
//! them. The cache keeps only a fingerprint of each object. `apply::repair` repairs an object whose fingerprint differs
//! from the desired fingerprint.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use serde::Serialize;

use super::field_managers::other_writer;
use super::parse_resource_version;
use crate::sync::{PerJob, lock};

/// The kinds of objects that a job has besides its pods and PodGroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OwnedKind {
    /// The Service of stage 0 of the first replica.
    Service,
    /// The NetworkPolicy of the job's pods.
    NetworkPolicy,
    /// The ConfigMap that stores an attempt template.
    ConfigMap,
}

/// An object of an [`OwnedKind`].
pub(crate) trait OwnedObject: ResourceExt {
    /// The kind of the object.
    const KIND: OwnedKind;

    /// Returns a hash of the fields that the operator sets. A change of any other field keeps the hash.
    fn fingerprint(&self) -> u64;
}

impl OwnedObject for Service {
    const KIND: OwnedKind = OwnedKind::Service;

    fn fingerprint(&self) -> u64 {
        let set = |spec: &k8s_openapi::api::core::v1::ServiceSpec| {
            let ports = serde_json::to_value(&spec.ports).unwrap_or_default();
            hash(&(&spec.type_, spec.publish_not_ready_addresses, &spec.selector, ports))
        };
        self.spec.as_ref().map_or(0, set)
    }
}

impl OwnedObject for NetworkPolicy {
    const KIND: OwnedKind = OwnedKind::NetworkPolicy;

    fn fingerprint(&self) -> u64 {
        hash(&self.spec)
    }
}

/// The ConfigMap is immutable, so only its existence matters.
impl OwnedObject for PartialObjectMeta<ConfigMap> {
    const KIND: OwnedKind = OwnedKind::ConfigMap;

    fn fingerprint(&self) -> u64 {
        0
    }
}

/// Returns a hash of the JSON of `fields`. Types of k8s-openapi have a fixed order of fields, so equal values have the
/// same JSON.
fn hash(fields: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(fields).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// An object that is missing, or that differs from the object that the operator wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedObject {
    /// The kind of the object.
    pub kind: OwnedKind,
    /// `metadata.name`
    pub name: String,
    /// The field manager of the client that changed the object; `None` if the object was deleted or the client is
    /// unknown.
    pub changed_by: Option<String>,
}

/// The state of one object, as the operator knows it from the watch and from its own writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownObject {
    /// The kind of the object.
    pub kind: OwnedKind,
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// The result of [`OwnedObject::fingerprint`].
    pub fingerprint: u64,
    /// The field manager of the last client, except this operator, that wrote the object.
    pub other_writer: Option<String>,
    /// The fingerprints of this operator's last write and of the object that the API server stored for that write. An
    /// admission webhook may have changed the object.
    written: Option<(u64, u64)>,
    version: u64,
    /// Whether the object was deleted. The entry is kept, so that an older version that arrives later does not restore
    /// the object.
    deleted: bool,
}

impl KnownObject {
    /// Returns the known state of `object`. `own` is this operator's field manager.
    pub(crate) fn new<K: OwnedObject>(object: &K, own: &str) -> KnownObject {
        KnownObject {
            kind: K::KIND,
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            fingerprint: object.fingerprint(),
            other_writer: other_writer(object.meta(), own),
            written: None,
            version: parse_resource_version(object.resource_version().as_deref()),
            deleted: false,
        }
    }

    /// Returns this state, and records that the API server stored this object when the operator wrote an object with
    /// the fingerprint `desired`.
    pub(crate) fn written_as(self, desired: u64) -> KnownObject {
        KnownObject { written: Some((desired, self.fingerprint)), ..self }
    }

    /// Whether the object has the fingerprint `desired`, or the fingerprint that the API server stores whenever the
    /// operator writes `desired`.
    pub(crate) fn is_as(&self, desired: u64) -> bool {
        self.fingerprint == desired || self.written == Some((desired, self.fingerprint))
    }
}

/// The known objects of all jobs.
#[derive(Debug, Default)]
pub(crate) struct OwnedObjects {
    jobs: PerJob<JobObjects>,
    /// The kinds and namespaces (`""` for all) whose initial list is complete. An unknown object of such a kind and
    /// namespace does not exist.
    synced: Mutex<HashSet<(OwnedKind, String)>>,
}

#[derive(Debug, Default)]
struct JobObjects {
    namespace: String,
    all: Vec<KnownObject>,
}

impl OwnedObjects {
    /// Adds an object that this operator wrote or that the watch delivered. Returns whether the known state has
    /// changed.
    pub(crate) fn insert(&self, job: &str, namespace: &str, mut object: KnownObject) -> bool {
        let mut jobs = self.jobs.lock();
        let objects = jobs.entry(job.to_owned()).or_default();
        namespace.clone_into(&mut objects.namespace);
        let is_same = |known: &KnownObject| known.kind == object.kind && known.name == object.name;
        let before = objects.all.iter().position(is_same);
        if let Some(known) = before.map(|at| &mut objects.all[at]).filter(|known| known.version >= object.version) {
            // a write that changes nothing keeps the resourceVersion, so such a write is recorded although its version
            // is not newer
            let is_same = known.version == object.version;
            known.written = object.written.filter(|_| is_same).or(known.written);
            return false;
        }
        let before = before.map(|at| objects.all.swap_remove(at));
        object.written = object.written.or_else(|| before.as_ref()?.written);
        let is_news = before.is_none_or(|before| {
            (before.deleted, &before.uid, before.fingerprint) != (object.deleted, &object.uid, object.fingerprint)
        });
        // keep only one deleted object of each kind
        objects.all.retain(|known| !(object.deleted && known.deleted && known.kind == object.kind));
        objects.all.push(object);
        is_news
    }

    /// Records that an object was deleted. Returns whether the known state has changed.
    pub(crate) fn remove(&self, job: &str, namespace: &str, object: KnownObject) -> bool {
        self.insert(job, namespace, KnownObject { deleted: true, ..object })
    }

    /// Records that a watch starts or restarts. Removes the objects that the watch delivered before, because another
    /// client may have deleted them.
    pub(crate) fn begin_list(&self, kind: OwnedKind, namespace: &str) {
        lock(&self.synced).remove(&(kind, namespace.to_owned()));
        for objects in self.jobs.lock().values_mut() {
            if namespace.is_empty() || objects.namespace == namespace {
                objects.all.retain(|known| known.kind != kind);
            }
        }
    }

    /// Records that the initial list of a watch is complete.
    pub(crate) fn end_list(&self, kind: OwnedKind, namespace: &str) {
        lock(&self.synced).insert((kind, namespace.to_owned()));
    }

    /// Returns the object of this kind and name; `None` if no such object is known.
    pub(crate) fn get(&self, job: &str, kind: OwnedKind, name: &str) -> Option<KnownObject> {
        let jobs = self.jobs.lock();
        let known = jobs.get(job)?.all.iter().find(|known| known.kind == kind && known.name == name && !known.deleted);
        known.cloned()
    }

    /// Whether the list of this kind is complete, so that an unknown object does not exist.
    pub(crate) fn is_synced(&self, kind: OwnedKind, namespace: &str) -> bool {
        let synced = lock(&self.synced);
        [namespace, ""].into_iter().any(|namespace| synced.contains(&(kind, namespace.to_owned())))
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.jobs.retain(is_live);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(version: &str, stage: &str) -> KnownObject {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": version});
        let object = json!({"metadata": metadata, "spec": {"selector": {"stage": stage}}});
        KnownObject::new(&serde_json::from_value::<Service>(object).unwrap(), "stagecoach-operator:ml/stagecoach")
    }

    fn is_known(objects: &OwnedObjects) -> bool {
        objects.get("job", OwnedKind::Service, "a").is_some()
    }

    #[test]
    fn only_changes_of_what_the_operator_sets_are_news() {
        let objects = OwnedObjects::default();
        assert!(objects.insert("job", "ml", service("5", "0")));
        assert!(!objects.insert("job", "ml", service("5", "0")), "the watch delivers what was written");
        assert!(!objects.insert("job", "ml", service("6", "0")), "another client's annotation");
        assert!(!objects.insert("job", "ml", service("4", "1")), "older");
        assert!(objects.insert("job", "ml", service("7", "1")));
        assert!(objects.remove("job", "ml", service("8", "1")));
        assert!(!objects.insert("job", "ml", service("7", "1")) && !is_known(&objects), "it was deleted since");
        assert!(objects.insert("job", "ml", service("9", "1")) && is_known(&objects));
    }

    #[test]
    fn what_admission_makes_of_a_write_needs_no_repair() {
        let objects = OwnedObjects::default();
        let desired = service("5", "0").fingerprint;
        let is_as_desired = || objects.get("job", OwnedKind::Service, "a").is_some_and(|known| known.is_as(desired));
        objects.insert("job", "ml", service("5", "0"));
        assert!(is_as_desired());
        objects.insert("job", "ml", service("6", "changed"));
        assert!(!is_as_desired());
        objects.insert("job", "ml", service("6", "changed").written_as(desired));
        assert!(is_as_desired(), "a write without effect");
        objects.insert("job", "ml", service("7", "changed"));
        assert!(is_as_desired(), "another client's annotation");
        objects.insert("job", "ml", service("8", "changed again"));
        assert!(!is_as_desired(), "another client's change");
        let other = service("8", "1").fingerprint;
        assert!(!objects.get("job", OwnedKind::Service, "a").unwrap().is_as(other));
    }

    #[test]
    fn absence_is_known_only_after_a_complete_list() {
        let objects = OwnedObjects::default();
        objects.insert("job", "ml", service("5", "0"));
        objects.begin_list(OwnedKind::ConfigMap, "");
        objects.begin_list(OwnedKind::Service, "other");
        assert!(is_known(&objects));
        objects.begin_list(OwnedKind::Service, "ml");
        assert!(!is_known(&objects) && !objects.is_synced(OwnedKind::Service, "ml"));
        objects.end_list(OwnedKind::Service, "ml");
        assert!(objects.is_synced(OwnedKind::Service, "ml") && !objects.is_synced(OwnedKind::Service, "other"));
        objects.end_list(OwnedKind::Service, "");
        assert!(objects.is_synced(OwnedKind::Service, "other"));
    }
}
