//! What triggers a reconcile: a change of a PipelineJob or of one of its pods.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};

use crate::build::{JOB_LABEL, JOB_UID_LABEL};
use crate::context::Context;
use crate::errors::error_policy;
use crate::job::RawPipelineJob;
use crate::observe::{ObservedPod, PartialPod};
use crate::reconcile::reconcile;

/// Events within this time trigger one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(1);
/// How often cache entries of deleted jobs are removed.
const CACHE_CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// Watches and reconciles until `stop`; reconciles in progress are finished first.
pub(crate) async fn run(context: Arc<Context>, stop: tokio::sync::watch::Receiver<bool>) {
    let namespaces = &context.config.namespaces;
    let all = [String::new()];
    let watched = if namespaces.is_empty() { &all[..] } else { namespaces };
    let watches = join_all(watched.iter().map(|namespace| watch(Arc::clone(&context), namespace, stop.clone())));
    tokio::select! {
        _ = watches => {}
        () = clean_up_caches(&context) => {}
    }
}

/// Watches one namespace, or all if the name is empty.
async fn watch(context: Arc<Context>, namespace: &str, mut stop: tokio::sync::watch::Receiver<bool>) {
    let client = &context.client;
    let (all_jobs, all_pods): (Api<RawPipelineJob>, Api<PartialPod>) = match namespace {
        "" => (Api::all(client.clone()), Api::all(client.clone())),
        name => (Api::namespaced(client.clone(), name), Api::namespaced(client.clone(), name)),
    };
    let config = Config::default().concurrency(context.config.workers).debounce(DEBOUNCE);
    let writer = Writer::default();
    let store = writer.as_reader();
    context.telemetry.add_store(store.clone());
    let (pod_context, pod_namespace, job_context) = (Arc::clone(&context), namespace.to_owned(), Arc::clone(&context));
    let changed = watcher(all_jobs, watcher::Config::default())
        .default_backoff()
        .modify(|job| job.metadata.managed_fields = None)
        .reflect(writer)
        .touched_objects()
        .try_filter(move |job| std::future::ready(!job_context.write_cache.is_own_write(job)));
    let owned = watcher::Config::default().labels(JOB_UID_LABEL);
    let touched = watcher(all_pods, owned).default_backoff().filter_map(move |event| {
        std::future::ready(event.ok().and_then(|event| job_of_pod_event(&pod_context, &pod_namespace, event)))
    });
    let triggered = context.triggers.receive(namespace);
    let streams = Controller::for_stream(changed, store)
        .with_config(config)
        .reconcile_on(touched)
        .reconcile_on(triggered)
        .graceful_shutdown_on(async move { drop(stop.wait_for(|stop| *stop).await) })
        .run(reconcile, error_policy, Arc::clone(&context));
    streams
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::debug!("{error}");
            }
        })
        .await;
}

/// The job to reconcile, if the pod event changes what is cached.
fn job_of_pod_event(context: &Context, namespace: &str, event: Event<PartialPod>) -> Option<ObjectRef<RawPipelineJob>> {
    let (pod, deleted) = match event {
        Event::Apply(pod) | Event::InitApply(pod) => (pod, false),
        Event::Delete(pod) => (pod, true),
        Event::Init => {
            context.pod_cache.invalidate(namespace);
            return None;
        }
        Event::InitDone => {
            context.pod_cache.mark_synced(namespace);
            return None;
        }
    };
    let job = ObjectRef::new(pod.labels().get(JOB_LABEL)?).within(&pod.namespace()?);
    let uid = pod.labels().get(JOB_UID_LABEL)?.clone();
    let changed = match ObservedPod::from_partial(&pod, &uid) {
        Some(pod) => context.pod_cache.apply_event(&uid, pod, deleted),
        None => context.pod_cache.remove_foreign(&uid, &pod.uid().unwrap_or_default()),
    };
    changed.then_some(job)
}

async fn clean_up_caches(context: &Context) {
    loop {
        tokio::time::sleep(CACHE_CLEANUP_INTERVAL).await;
        let live = context.telemetry.live_job_uids();
        context.retain(&|uid| live.contains(uid));
    }
}
