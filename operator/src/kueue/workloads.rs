//! The Workloads of all jobs, which the watch updates.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use stagecoach_api::contract::{JOB_LABEL, JOB_UID_LABEL};
use stagecoach_lifecycle::AttemptPhase;

use crate::build::JobReference;
use crate::build::kueue::{KUEUE_API_VERSION, Workload, workload_number};
use crate::observe::parse_resource_version;
use crate::requeue::{FIRST_LIST_DELAY, UNLISTED_RETRY_DELAY};
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
    /// The error of the watch, if it has failed before its first list.
    failure: Option<String>,
    /// The namespaces and names of the Workloads in the list that is in progress.
    listed: HashSet<(String, String)>,
}

impl WorkloadCache {
    /// Applies an event of the watch of the namespace `watched`; `""` stands for all namespaces. Returns the jobs whose
    /// Workloads have changed.
    pub(crate) fn apply(&self, watched: &str, event: Event<Workload>) -> Vec<JobReference> {
        self.watches.with(watched, |watch| watch.apply(event))
    }

    /// Records that the watch of the namespace `watched` has failed. Returns whether this is the first failure before
    /// the first list.
    pub(crate) fn watch_failed(&self, watched: &str, error: &str) -> bool {
        self.watches.with(watched, |watch| !watch.has_listed && watch.failure.replace(error.to_owned()).is_none())
    }

    /// Records a Workload that this operator has written, before the watch delivers it.
    pub(crate) fn insert(&self, workload: Workload) {
        let namespace = workload.namespace().unwrap_or_default();
        self.watches.with_watch_of(&namespace, |watch| watch.insert(workload));
    }

    /// Removes a Workload that this operator has deleted, before the watch delivers the deletion.
    pub(crate) fn remove(&self, workload: &Workload) {
        self.watches.with_watch_of(&workload.namespace().unwrap_or_default(), |watch| watch.remove(workload));
    }

    /// Returns the Workloads of a job in the order of their creation, including the Workload with the name `prebuilt`.
    ///
    /// # Errors
    /// Returns an error before the first list, because a job would seem to have no Workloads. The caller must not wait
    /// for the list: if the cluster does not serve Kueue's API, the list never arrives.
    pub(crate) fn of(&self, job: &JobReference, prebuilt: Option<&str>) -> Result<Vec<Arc<Workload>>, NotListed> {
        let workloads_of_job = |watch: &mut Watch| match watch.has_listed {
            true => Ok(watch.of(job, prebuilt)),
            false => Err(NotListed { failure: watch.failure.clone() }),
        };
        let of_watch = self.watches.with_watch_of(&job.namespace, workloads_of_job);
        of_watch.unwrap_or(Err(NotListed { failure: None }))
    }
}

/// The state of a watch before its first list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotListed {
    /// The error of the watch, if the watch has failed.
    pub(crate) failure: Option<String>,
}

impl NotListed {
    /// Whether the operator can't decide about a job whose attempt is in this phase: the list may arrive at once, or
    /// pods of the job may run under an admission that the operator does not know yet.
    pub(crate) fn blocks(&self, phase: &AttemptPhase) -> bool {
        self.failure.is_none() || matches!(phase, AttemptPhase::Running { .. } | AttemptPhase::Draining)
    }

    /// Returns the delay until the next reconcile. A list usually arrives at once, and a failed watch restarts after a
    /// pause.
    pub(crate) fn retry_delay(&self) -> Duration {
        if self.failure.is_some() { UNLISTED_RETRY_DELAY } else { FIRST_LIST_DELAY }
    }

    /// Returns a sentence for the user; `None` if the watch has not failed.
    pub(crate) fn message(&self) -> Option<String> {
        self.failure.as_deref().map(not_listed_message)
    }
}

/// Returns a sentence about the error of a watch that has failed before its first list.
pub(crate) fn not_listed_message(error: &str) -> String {
    format!(
        "the operator can't list the Workloads of Kueue ({KUEUE_API_VERSION}), so that no job with a queue starts: \
         install a version of Kueue with this API, or install the chart again with kueue.enabled for the operator's \
         rights; the error is: {error}"
    )
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
                self.remove(&workload);
                job_of(&workload).into_iter().collect()
            }
            Event::InitDone => {
                (self.has_listed, self.failure) = (true, None);
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

    /// Removes a Workload, unless another Workload has its name now.
    fn remove(&mut self, workload: &Workload) {
        let key = key(workload);
        if self.all.get(&key).is_some_and(|known| known.metadata.uid == workload.metadata.uid) {
            self.all.remove(&key);
        }
    }

    /// Inserts a Workload, unless the known version is the same or newer. Returns the job of the Workload if the
    /// Workload was inserted.
    fn insert(&mut self, workload: Workload) -> Option<JobReference> {
        let version = |workload: &Workload| parse_resource_version(workload.resource_version().as_deref());
        let key = key(&workload);
        // resourceVersions also order two Workloads that have had the same name
        let is_old = self.all.get(&key).is_some_and(|known| version(known) >= version(&workload));
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
