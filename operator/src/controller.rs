//! What makes a job be looked at: a change of it, or of one of its pods.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};

use crate::job;
use crate::observe::{self, to_value};
use crate::reconcile::{Context, error_policy, reconcile};

/// Events that come together are one reason to look.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// How often what belongs to jobs that are gone is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// Watches and reconciles until `stop`; what is under way then is finished.
pub(crate) async fn run(context: Arc<Context>, stop: tokio::sync::watch::Receiver<bool>) {
    let namespaces = &context.settings.namespaces;
    let all = [String::new()];
    let watched = if namespaces.is_empty() { &all[..] } else { namespaces };
    join_all(watched.iter().map(|namespace| watch(Arc::clone(&context), namespace, stop.clone()))).await;
}

/// One namespace; all if it has no name.
async fn watch(context: Arc<Context>, namespace: &str, mut stop: tokio::sync::watch::Receiver<bool>) {
    let api = |resource: &ApiResource| scoped(&context.client, namespace, resource);
    let (jobs, pods) = (job::resource(), ApiResource::erase::<Pod>(&()));
    let config = Config::default().concurrency(context.settings.workers).debounce(DEBOUNCE);
    let seen = Arc::clone(&context);
    let controller = Controller::new_with(api(&jobs), watcher::Config::default(), jobs.clone()).with_config(config);
    let store = controller.store();
    context.telemetry.count_in(store.clone());
    let owned = watcher::Config::default().labels(crate::build::JOB_UID);
    let streams = controller
        .watches_with(api(&pods), pods, owned, move |pod| trigger(&seen, &pod, &jobs))
        .graceful_shutdown_on(async move { drop(stop.wait_for(|stop| *stop).await) })
        .run(reconcile, error_policy, Arc::clone(&context));
    let work = streams.for_each(async |result| {
        if let Err(error) = result {
            tracing::debug!("{error}");
        }
    });
    tokio::select! {
        () = work => {}
        () = forget(&context, store) => {}
    }
}

fn scoped(client: &Client, namespace: &str, resource: &ApiResource) -> Api<DynamicObject> {
    match namespace {
        "" => Api::all_with(client.clone(), resource),
        namespace => Api::namespaced_with(client.clone(), namespace, resource),
    }
}

/// The job to look at when one of its pods changed. How it ended is noted: a list won't tell once it is gone.
fn trigger(context: &Context, pod: &DynamicObject, jobs: &ApiResource) -> Option<ObjectRef<DynamicObject>> {
    let name = pod.labels().get(crate::build::JOB)?.clone();
    let namespace = pod.namespace()?;
    if let Some(pod) = observe::Pod::new(to_value(pod)) {
        context.endings.note(pod);
    }
    Some(ObjectRef::new_with(&name, jobs.clone()).within(&namespace))
}

async fn forget(context: &Context, store: Store<DynamicObject>) {
    loop {
        tokio::time::sleep(FORGET).await;
        let living: std::collections::HashSet<String> = store.state().iter().filter_map(|job| job.uid()).collect();
        context.retain(&|uid| living.contains(uid));
    }
}
