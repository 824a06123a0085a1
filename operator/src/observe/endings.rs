//! How pods ended. A kubelet writes a pod's end before the pod goes, and a list shows what is there alone: the last that
//! the watch brought is kept until its job has no more use for it. After a restart of the operator what was missed is
//! missed: the cause is then `Unknown`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use stagecoach_lifecycle::MemberState;

use super::Pod;
use crate::build;

/// Ends of pods, by their job's UID.
#[derive(Debug, Default)]
pub(crate) struct Endings(Mutex<HashMap<String, Vec<Pod>>>);

impl Endings {
    /// Notes a pod that the watch brought.
    pub(crate) fn note(&self, pod: Pod) {
        let MemberState::Exited(_) = pod.member.state else { return };
        let Some(job) = pod.object["metadata"]["labels"][build::JOB_UID].as_str().map(str::to_owned) else {
            return;
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = all.entry(job).or_default();
        // an attempt that is over needs no explanation any more
        ended.retain(|other| other.uid() != pod.uid() && other.member.attempt + 1 >= pod.member.attempt);
        ended.push(pod);
    }

    /// Adds those of `attempt` that ended and are gone to the ones that are there.
    pub(crate) fn complete(&self, job: &str, attempt: u64, pods: &mut Vec<Pod>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ended in all.get(job).into_iter().flatten().filter(|ended| ended.member.attempt == attempt) {
            if pods.iter().all(|pod| pod.uid() != ended.uid()) {
                pods.push(Pod { gone: true, ..ended.clone() });
            }
        }
    }

    /// Forgets the jobs that are not among the living.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| living(uid));
    }
}
