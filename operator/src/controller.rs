//! What makes a job be looked at: a change of it, or of one of its pods.

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

use crate::build::{JOB, JOB_UID};
use crate::context::Context;
use crate::job::JobObject;
use crate::observe::{Pod, PodObject};
use crate::reconcile::{error_policy, reconcile};

/// Events that come together are one reason to look.
const DEBOUNCE: Duration = Duration::from_millis(1);
/// How often what belongs to jobs that are gone is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// Watches and reconciles until `stop`; what is under way then is finished.
pub(crate) async fn run(context: Arc<Context>, stop: tokio::sync::watch::Receiver<bool>) {
    let namespaces = &context.settings.namespaces;
    let all = [String::new()];
    let watched = if namespaces.is_empty() { &all[..] } else { namespaces };
    let watches = join_all(watched.iter().map(|namespace| watch(Arc::clone(&context), namespace, stop.clone())));
    tokio::select! {
        _ = watches => {}
        () = forget(&context) => {}
    }
}

/// One namespace; all if it has no name.
async fn watch(context: Arc<Context>, namespace: &str, mut stop: tokio::sync::watch::Receiver<bool>) {
    let client = &context.client;
    let (all_jobs, all_pods): (Api<JobObject>, Api<PodObject>) = match namespace {
        "" => (Api::all(client.clone()), Api::all(client.clone())),
        name => (Api::namespaced(client.clone(), name), Api::namespaced(client.clone(), name)),
    };
    let config = Config::default().concurrency(context.settings.workers).debounce(DEBOUNCE);
    let writer = Writer::default();
    let store = writer.as_reader();
    context.telemetry.count_in(store.clone());
    let (seen, of, known) = (Arc::clone(&context), namespace.to_owned(), Arc::clone(&context));
    let changed = watcher(all_jobs, watcher::Config::default())
        .default_backoff()
        .modify(|job| job.metadata.managed_fields = None)
        .reflect(writer)
        .touched_objects()
        .try_filter(move |job| std::future::ready(!known.written.is_own(job)));
    let owned = watcher::Config::default().labels(JOB_UID);
    let touched = watcher(all_pods, owned)
        .default_backoff()
        .filter_map(move |event| std::future::ready(event.ok().and_then(|event| trigger(&seen, &of, event))));
    let streams = Controller::for_stream(changed, store)
        .with_config(config)
        .reconcile_on(touched)
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

/// The job to look at, if what happened to one of its pods is any news.
fn trigger(context: &Context, namespace: &str, event: Event<PodObject>) -> Option<ObjectRef<JobObject>> {
    let (pod, deleted) = match event {
        Event::Apply(pod) | Event::InitApply(pod) => (pod, false),
        Event::Delete(pod) => (pod, true),
        Event::Init => {
            context.watched.doubt(namespace);
            return None;
        }
        Event::InitDone => {
            context.watched.complete(namespace);
            return None;
        }
    };
    let job = ObjectRef::new(pod.labels().get(JOB)?).within(&pod.namespace()?);
    let uid = pod.labels().get(JOB_UID)?.clone();
    let news = match Pod::of(&pod, &uid) {
        Some(pod) => context.watched.note(&uid, pod, deleted),
        None => context.watched.note_foreign(&uid, &pod.uid().unwrap_or_default()),
    };
    news.then_some(job)
}

async fn forget(context: &Context) {
    loop {
        tokio::time::sleep(FORGET).await;
        let living = context.telemetry.living();
        context.retain(&|uid| living.contains(uid));
    }
}
