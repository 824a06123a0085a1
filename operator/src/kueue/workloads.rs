//! The Workloads of all jobs, which the watch updates.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use stagecoach_api::contract::{JOB_LABEL, JOB_UID_LABEL};

use crate::build::JobReference;
use crate::build::kueue::{Workload, workload_number};
use crate::observe::parse_resource_version;
use crate::sync::Watches;

/// The Workloads of all jobs.
#[derive(Debug, Default)]
pub(crate) struct WorkloadCache {
    watches: Watches<Watch>,
}

/// The Workloads that one watch has delivered. A watch covers one namespace, or all namespaces.
#[derive(Debug, Default)]
struct Watch {
    /// The Workloads by namespace and name.
    all: BTreeMap<(String, String), Arc<Workload>>,
    has_listed: bool,
    /// The namespaces and names of the Workloads in the list that is in progress.
    listed: HashSet<(String, String)>,
}

impl WorkloadCache {
    /// Applies an event of the watch of the namespace `watched`; `""` stands for all namespaces. Returns the jobs whose
    /// Workloads have changed.
    pub(crate) fn apply(&self, watched: &str, event: Event<Workload>) -> Vec<JobReference> {
        let list_ends = matches!(event, Event::InitDone);
        let changed = self.watches.with(watched, |watch| watch.apply(event));
        if list_ends {
            self.watches.list_has_ended();
        }
        changed
    }

    /// Records a Workload that this operator has written, before the watch delivers it.
    pub(crate) fn insert(&self, workload: Workload) {
        let namespace = workload.namespace().unwrap_or_default();
        self.watches.with_watch_of(&namespace, |watch| watch.insert(workload));
    }

    /// Removes a Workload that this operator has deleted, before the watch delivers the deletion.
    pub(crate) fn remove(&self, workload: &Workload) {
        let key = key(workload);
        self.watches.with_watch_of(&key.0, |watch| {
            if watch.all.get(&key).is_some_and(|known| known.metadata.uid == workload.metadata.uid) {
                watch.all.remove(&key);
            }
        });
    }

    /// Returns the Workloads of a job in the order of their creation, including the Workload with the name `prebuilt`.
    /// Waits for the first list, because a job would seem to have no Workloads before that list.
    pub(crate) async fn of(&self, job: &JobReference, prebuilt: Option<&str>) -> Vec<Arc<Workload>> {
        self.watches.after_list(|| self.listed(job, prebuilt)).await
    }

    /// Returns the Workloads of a job; `None` before the first list.
    pub(crate) fn listed(&self, job: &JobReference, prebuilt: Option<&str>) -> Option<Vec<Arc<Workload>>> {
        let workloads_of_job = |watch: &mut Watch| watch.has_listed.then(|| watch.of(job, prebuilt));
        self.watches.with_watch_of(&job.namespace, workloads_of_job).flatten()
    }
}

impl Watch {
    /// Applies an event. Returns the jobs whose Workloads have changed.
    fn apply(&mut self, event: Event<Workload>) -> Vec<JobReference> {
        match event {
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(workload) => {
                self.listed.insert(key(&workload));
                self.insert(workload).into_iter().collect()
            }
            Event::Apply(workload) => self.insert(workload).into_iter().collect(),
            Event::Delete(workload) => {
                self.all.remove(&key(&workload));
                job_of(&workload).into_iter().collect()
            }
            Event::InitDone => {
                self.has_listed = true;
                let gone = self.all.extract_if(.., |key, _| !self.listed.contains(key));
                gone.filter_map(|(_, workload)| job_of(&workload)).collect()
            }
        }
    }

    /// Returns the Workloads of a job in the order of their creation, including the Workload with the name `prebuilt`.
    fn of(&self, job: &JobReference, prebuilt: Option<&str>) -> Vec<Arc<Workload>> {
        let first = (job.namespace.clone(), String::new());
        let of_namespace = self.all.range(first..).take_while(|((namespace, _), _)| *namespace == job.namespace);
        let is_own = |workload: &Workload| {
            workload.labels().get(JOB_UID_LABEL) == Some(&job.uid) || workload.metadata.name.as_deref() == prebuilt
        };
        let mut found: Vec<_> =
            of_namespace.map(|(_, workload)| workload).filter(|workload| is_own(workload)).cloned().collect();
        // Workloads that were created in the same second are in the order of their numbers
        let created = |workload: &Workload| workload.creation_timestamp().map(|time| time.0);
        found.sort_by_key(|workload| (created(workload), workload_number(job, workload)));
        found
    }

    /// Inserts a Workload, unless the known version is the same or newer. Returns the job of the Workload if the
    /// Workload was inserted.
    fn insert(&mut self, workload: Workload) -> Option<JobReference> {
        let version = |workload: &Workload| parse_resource_version(workload.resource_version().as_deref());
        let key = key(&workload);
        let is_old = self
            .all
            .get(&key)
            .is_some_and(|known| known.metadata.uid == workload.metadata.uid && version(known) >= version(&workload));
        let job = job_of(&workload).filter(|_| !is_old);
        if !is_old {
            self.all.insert(key, Arc::new(workload));
        }
        job
    }
}

fn key(workload: &Workload) -> (String, String) {
    (workload.namespace().unwrap_or_default(), workload.name_any())
}

fn job_of(workload: &Workload) -> Option<JobReference> {
    let labels = workload.labels();
    let (name, uid) = (labels.get(JOB_LABEL)?.clone(), labels.get(JOB_UID_LABEL)?.clone());
    Some(JobReference { name, namespace: workload.namespace()?, uid })
}
