//! The Workloads of all jobs, which the watch updates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use stagecoach_api::contract::{JOB_LABEL, JOB_UID_LABEL};

use crate::build::JobReference;
use crate::build::kueue::{Workload, workload_number};
use crate::observe::parse_resource_version;
use crate::sync::{WatchLists, lock};

/// The Workloads of all jobs.
#[derive(Debug, Default)]
pub(crate) struct WorkloadCache {
    /// The Workloads by namespace and name.
    all: Mutex<BTreeMap<(String, String), Arc<Workload>>>,
    /// The lists of the watches, with `namespace/name` as keys.
    lists: WatchLists,
}

impl WorkloadCache {
    /// Applies an event of the watch of `watched`. Returns the jobs whose Workloads have changed.
    pub(crate) fn apply(&self, watched: &str, event: Event<Workload>) -> Vec<JobReference> {
        match event {
            Event::Init => {
                self.lists.begin(watched);
                Vec::new()
            }
            Event::InitApply(workload) => {
                self.lists.add(watched, list_key(&key(&workload)));
                self.insert(workload).into_iter().collect()
            }
            Event::Apply(workload) => self.insert(workload).into_iter().collect(),
            Event::Delete(workload) => {
                lock(&self.all).remove(&key(&workload));
                job_of(&workload).into_iter().collect()
            }
            Event::InitDone => {
                let mut all = lock(&self.all);
                let listed = self.lists.end(watched);
                let is_gone = |key: &&(String, String)| {
                    (watched.is_empty() || key.0 == watched) && !listed.contains(&list_key(key))
                };
                let gone: Vec<_> = all.keys().filter(is_gone).cloned().collect();
                gone.iter().filter_map(|key| job_of(&*all.remove(key)?)).collect()
            }
        }
    }

    /// Inserts a Workload that the watch delivers, or that this operator has written, unless the known version is as
    /// new. Returns the job of an inserted Workload.
    pub(crate) fn insert(&self, workload: Workload) -> Option<JobReference> {
        let version = |workload: &Workload| parse_resource_version(workload.resource_version().as_deref());
        let (mut all, key) = (lock(&self.all), key(&workload));
        let is_old = all
            .get(&key)
            .is_some_and(|known| known.metadata.uid == workload.metadata.uid && version(known) >= version(&workload));
        if is_old {
            return None;
        }
        let job = job_of(&workload);
        all.insert(key, Arc::new(workload));
        job
    }

    /// Removes a Workload that this operator has deleted, before the watch delivers the deletion.
    pub(crate) fn remove(&self, workload: &Workload) {
        let (mut all, key) = (lock(&self.all), key(workload));
        if all.get(&key).is_some_and(|known| known.metadata.uid == workload.metadata.uid) {
            all.remove(&key);
        }
    }

    /// Returns the Workloads of a job in the order of their creation, including the Workload with the name `prebuilt`.
    /// Waits for the first list, because a job would seem to have no Workloads before that list.
    pub(crate) async fn of(&self, job: &JobReference, prebuilt: Option<&str>) -> Vec<Arc<Workload>> {
        self.lists.wait_for_first_list(&job.namespace).await;
        self.of_job(job, prebuilt)
    }

    /// Returns the Workloads of a job; `None` before the first list.
    pub(crate) fn listed(&self, job: &JobReference, prebuilt: Option<&str>) -> Option<Vec<Arc<Workload>>> {
        self.lists.has_listed(&job.namespace).then(|| self.of_job(job, prebuilt))
    }

    fn of_job(&self, job: &JobReference, prebuilt: Option<&str>) -> Vec<Arc<Workload>> {
        let all = lock(&self.all);
        let first = (job.namespace.clone(), String::new());
        let of_namespace = all.range(first..).take_while(|((namespace, _), _)| *namespace == job.namespace);
        let is_own = |workload: &Workload| {
            workload.labels().get(JOB_UID_LABEL) == Some(&job.uid) || workload.metadata.name.as_deref() == prebuilt
        };
        let mut found: Vec<_> =
            of_namespace.map(|(_, workload)| workload).filter(|workload| is_own(workload)).cloned().collect();
        // Workloads of the same second are in the order of their numbers
        let created = |workload: &Workload| workload.creation_timestamp().map(|time| time.0);
        found.sort_by_key(|workload| (created(workload), workload_number(job, workload)));
        found
    }
}

fn key(workload: &Workload) -> (String, String) {
    (workload.namespace().unwrap_or_default(), workload.name_any())
}

fn list_key((namespace, name): &(String, String)) -> String {
    format!("{namespace}/{name}")
}

fn job_of(workload: &Workload) -> Option<JobReference> {
    let labels = workload.labels();
    let (name, uid) = (labels.get(JOB_LABEL)?.clone(), labels.get(JOB_UID_LABEL)?.clone());
    Some(JobReference { name, namespace: workload.namespace()?, uid })
}
