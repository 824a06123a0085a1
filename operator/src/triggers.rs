//! Triggers reconciles of jobs, for example of a job for which a background task has read new data.

use std::collections::HashMap;
use std::sync::Mutex;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;

use crate::build::JobReference;
use crate::job::RawPipelineJob;
use crate::sync::lock;

/// The channels of jobs to reconcile, by watched namespace; `""` stands for all namespaces.
#[derive(Debug, Default)]
pub(crate) struct Triggers(Mutex<HashMap<String, UnboundedSender<ObjectRef<RawPipelineJob>>>>);

impl Triggers {
    /// Returns the receiver of the jobs that are triggered in a watched namespace.
    pub(crate) fn receive(&self, namespace: &str) -> UnboundedReceiver<ObjectRef<RawPipelineJob>> {
        let (sender, receiver) = unbounded();
        lock(&self.0).insert(namespace.to_owned(), sender);
        receiver
    }

    /// Triggers a reconcile of the job, if its namespace is watched.
    pub(crate) fn trigger(&self, job: &JobReference) {
        let senders = lock(&self.0);
        if let Some(sender) = senders.get(&job.namespace).or_else(|| senders.get("")) {
            // the trigger has no receiver while the operator shuts down
            let _ = sender.unbounded_send(ObjectRef::new(&job.name).within(&job.namespace));
        }
    }
}
