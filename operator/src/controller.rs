//! The watches and the triggers of reconciles: a change of a PipelineJob, of one of its pods, or of another object that
//! the job owns.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use stagecoach_api::contract::{JOB_LABEL, JOB_UID_LABEL};
use stagecoach_lifecycle::{BACKOFF_JITTER_PERCENT, backoff_delay, jittered};

use crate::build::kueue::Workload;
use crate::build::{self, JobReference};
use crate::context::Context;
use crate::errors::error_policy;
use crate::job::RawPipelineJob;
use crate::kueue::not_listed_message;
use crate::observe::{KnownObject, ObservedPod, OwnedObject, PartialPod, now};
use crate::reconcile::reconcile;

/// Events of one job within this time trigger a single reconcile.
const DEBOUNCE: Duration = Duration::from_millis(1);
/// The interval at which cache entries of deleted jobs are removed.
const CACHE_CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// The first and the longest pause before the operator restarts a failed watch. kube's default pauses grow to 30 s.
/// During such a pause, the operator would not see a job that was created after an outage, or after the CRD was applied
/// again.
const INITIAL_WATCH_PAUSE: Duration = Duration::from_millis(500);
const MAX_WATCH_PAUSE: Duration = Duration::from_secs(5);
/// The time without a failure after which the next pause is `INITIAL_WATCH_PAUSE` again.
const WATCH_PAUSE_RESET: Duration = Duration::from_secs(60);

/// Watches and reconciles until `stop` is set. Then finishes the reconciles in progress.
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

/// Watches one namespace, or all namespaces if the name is empty.
async fn watch(context: Arc<Context>, namespace: &str, mut stop: tokio::sync::watch::Receiver<bool>) {
    let client = &context.client;
    let config = Config::default().concurrency(context.config.workers).debounce(DEBOUNCE);
    let writer = Writer::default();
    let store = writer.as_reader();
    context.telemetry.add_store(store.clone());
    let (pod_context, pod_namespace, job_context) = (Arc::clone(&context), namespace.to_owned(), Arc::clone(&context));
    let (folder_context, folder_namespace) = (Arc::clone(&context), namespace.to_owned());
    let writers_context = Arc::clone(&context);
    let changed = events(&context, api::<RawPipelineJob>(client, namespace), watcher::Config::default())
        .modify(move |job| {
            writers_context.other_operators.read(job, &writers_context.field_manager);
            job.metadata.managed_fields = None;
        })
        .inspect_ok(move |event| {
            let waiting = folder_context.folders.apply(&folder_namespace, event);
            waiting.iter().for_each(|job| folder_context.triggers.trigger(job));
        })
        .reflect(writer)
        .touched_objects()
        .try_filter(move |job| std::future::ready(!job_context.write_cache.is_own_write(job)));
    let touched = watch_owned(&context, api::<PartialPod>(client, namespace)).filter_map(move |event| {
        std::future::ready(event.ok().and_then(|event| job_of_pod_event(&pod_context, &pod_namespace, event)))
    });
    let workloads = match context.config.kueue {
        true => changed_workloads(&context, namespace).boxed(),
        false => futures::stream::pending().boxed(),
    };
    let others: [BoxStream<'_, _>; 4] = [
        workloads,
        changed_owned::<Service>(&context, namespace).boxed(),
        changed_owned::<NetworkPolicy>(&context, namespace).boxed(),
        changed_owned::<PartialObjectMeta<ConfigMap>>(&context, namespace).boxed(),
    ];
    let triggered = context.triggers.receive(namespace);
    let streams = Controller::for_stream(changed, store)
        .with_config(config)
        .reconcile_on(touched)
        .reconcile_on(select_all(others))
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

/// Returns a client for the objects of one namespace, or of all namespaces if the name is empty.
fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(client: &Client, namespace: &str) -> Api<K> {
    match namespace {
        "" => Api::all(client.clone()),
        name => Api::namespaced(client.clone(), name),
    }
}

/// The pauses before the restarts of one watch.
#[derive(Debug)]
struct WatchPauses {
    failures: u32,
    /// The seed of the jitter. Watches with different seeds have different pauses.
    seed: u64,
}

impl Iterator for WatchPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        let pause = backoff_delay(INITIAL_WATCH_PAUSE, MAX_WATCH_PAUSE, self.failures);
        Some(jittered(pause, BACKOFF_JITTER_PERCENT, self.seed.wrapping_add(self.failures.into())))
    }
}

impl Backoff for WatchPauses {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

fn watch_backoff() -> ResetTimerBackoff<WatchPauses> {
    ResetTimerBackoff::new(WatchPauses { failures: 0, seed: now().0 }, WATCH_PAUSE_RESET)
}

/// Returns the events of a watch. Restarts the watch after a failure, and logs and counts the failure.
fn events<K>(
    context: &Arc<Context>,
    objects: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let context = Arc::clone(context);
    watcher(objects, config).backoff(watch_backoff()).inspect_err(move |error| {
        let kind = K::kind(&());
        tracing::warn!("the watch of kind {kind} failed and restarts: {error}");
        context.telemetry.watch_failed(&kind);
    })
}

/// Returns the events of the objects that have the label of a job. A job does not necessarily own such an object.
fn watch_owned<K>(
    context: &Arc<Context>,
    objects: Api<K>,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    events(context, objects, watcher::Config::default().labels(JOB_UID_LABEL))
}

/// Returns the jobs to reconcile: each job with an object of kind `K` whose state differs from the state that the
/// operator knows.
fn changed_owned<K>(
    context: &Arc<Context>,
    namespace: &str,
) -> impl Stream<Item = ObjectRef<RawPipelineJob>> + Send + use<K>
where
    K: OwnedObject + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (context, watched) = (Arc::clone(context), namespace.to_owned());
    watch_owned(&context, api::<K>(&context.client, namespace)).filter_map(move |event| {
        std::future::ready(event.ok().and_then(|event| job_of_owned_event(&context, &watched, event)))
    })
}

/// Returns the jobs whose Workloads have changed.
fn changed_workloads(
    context: &Arc<Context>,
    namespace: &str,
) -> impl Stream<Item = ObjectRef<RawPipelineJob>> + Send + use<> {
    let (context, watched) = (Arc::clone(context), namespace.to_owned());
    watch_owned(&context, api::<Workload>(&context.client, namespace)).flat_map(move |event| {
        let jobs = match event {
            Ok(event) => context.workloads.apply(&watched, event),
            Err(error) => {
                let error = error.to_string();
                if context.workloads.watch_failed(&watched, &error) {
                    tracing::warn!("{}", not_listed_message(&error));
                }
                Vec::new()
            }
        };
        futures::stream::iter(jobs.into_iter().map(|job| ObjectRef::new(&job.name).within(&job.namespace)))
    })
}

/// Updates the known objects. Returns the job to reconcile, if the object has the labels of a job and the event changes
/// the known state.
fn job_of_owned_event<K: OwnedObject>(
    context: &Context,
    watched: &str,
    event: Event<K>,
) -> Option<ObjectRef<RawPipelineJob>> {
    let (object, deleted) = match event {
        Event::Apply(object) | Event::InitApply(object) => (object, false),
        Event::Delete(object) => (object, true),
        Event::Init => {
            context.owned_objects.begin_list(K::KIND, watched);
            return None;
        }
        Event::InitDone => {
            context.owned_objects.end_list(K::KIND, watched);
            return None;
        }
    };
    let (name, uid) = (object.labels().get(JOB_LABEL)?, object.labels().get(JOB_UID_LABEL)?);
    let namespace = object.namespace()?;
    // an object without the owner reference does not belong to the job, so the job lacks this object as if it were
    // deleted
    let deleted = deleted || !build::is_controlled_by(object.meta(), uid);
    let known = KnownObject::new(&object, &context.field_manager);
    let is_news = match deleted {
        true => context.owned_objects.remove(uid, &namespace, known),
        false => context.owned_objects.insert(uid, &namespace, known),
    };
    is_news.then(|| ObjectRef::new(name).within(&namespace))
}

/// Updates the pod cache. Returns the job to reconcile, if the event changes the cached pods.
fn job_of_pod_event(context: &Context, watched: &str, event: Event<PartialPod>) -> Option<ObjectRef<RawPipelineJob>> {
    let (pod, deleted) = match event {
        Event::Apply(pod) | Event::InitApply(pod) => (pod, false),
        Event::Delete(pod) => (pod, true),
        Event::Init => {
            context.pod_cache.begin_list(watched);
            return None;
        }
        Event::InitDone => {
            context.pod_cache.end_list(watched).iter().for_each(|job| context.triggers.trigger(job));
            return None;
        }
    };
    let (name, namespace) = (pod.labels().get(JOB_LABEL)?.clone(), pod.namespace()?);
    let job = JobReference { name, namespace, uid: pod.labels().get(JOB_UID_LABEL)?.clone() };
    let changed = match ObservedPod::from_partial(&pod, &job.uid) {
        Some(pod) => context.pod_cache.apply_event(&job, pod, deleted),
        None => context.pod_cache.remove_foreign(&job.uid, &pod.uid().unwrap_or_default()),
    };
    changed.then(|| ObjectRef::new(&job.name).within(&job.namespace))
}

async fn clean_up_caches(context: &Context) {
    loop {
        tokio::time::sleep(CACHE_CLEANUP_INTERVAL).await;
        let live = context.telemetry.live_job_uids();
        context.retain(&|uid| live.contains(uid));
    }
}
