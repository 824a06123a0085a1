//! The folders on PersistentVolumeClaims, and the job that holds each folder. Two jobs in one folder would take the
//! fence, the right to commit checkpoints, from each other forever. Therefore only one job holds a folder: the job that
//! the operator has accepted with this folder, or else the oldest job. The watch of PipelineJobs, and not a reconcile,
//! updates the folders, because the operator may reconcile a waiting job before it reconciles the job that holds the
//! folder.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use serde::Deserialize;
use serde::de::IgnoredAny;
use stagecoach_api::job::{Condition, JobPhase, condition_reason, condition_type};
use stagecoach_api::{PipelineJob, StoredSpec};

use crate::build::{self, JobReference};
use crate::job::{self, FolderTaken, RawPipelineJob};
use crate::requeue::{LEAVING_RETRY_DELAY, WAITING_RETRY_DELAY};
use crate::sync::lock;

/// The time for which the pods of a job that has left a folder keep other jobs out of the folder. On a dead node, such
/// pods may exist forever. After this time, another job may take the folder and its fence, and the fence then prevents
/// these pods from committing checkpoints.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Folder {
    namespace: String,
    claim: String,
    /// The path relative to the volume's root, without empty parts and `.`.
    path: String,
}

/// A job that holds a folder, waits for it, or has left it.
#[derive(Debug)]
struct User {
    job: JobReference,
    created: Option<Timestamp>,
    /// Whether the job was accepted with this folder.
    accepted: bool,
    /// `None` while the spec of the job names the folder.
    left: Option<Departure>,
}

/// The way in which a job leaves a folder that its pods may still use.
#[derive(Clone, Copy, Debug)]
enum Departure {
    /// The job waits for another folder, or its new spec is invalid. Its pods keep running in this folder. After a
    /// restart, the operator no longer knows this folder, and only the fence protects the pods' checkpoints.
    Waiting,
    /// The job was deleted, has ended or took another folder at this time.
    Since(Instant),
}

/// The folders of all jobs that are not over.
#[derive(Debug, Default)]
pub(crate) struct Folders(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    users: HashMap<Folder, Vec<User>>,
    /// The generation of each job's spec and the folder that the spec names, by job UID. The folder is `None` if the
    /// spec names no claim. A job whose spec can't be read is absent.
    of_job: HashMap<String, (i64, Option<Folder>)>,
    /// The UIDs of the jobs in the list that is in progress, by watched namespace; `""` stands for all namespaces.
    listing: HashMap<String, HashSet<String>>,
}

impl Folders {
    /// Applies an event of the watch of a namespace; `""` stands for all namespaces. Returns the jobs that waited for a
    /// folder and may now get it.
    pub(crate) fn apply(&self, watched: &str, event: &Event<RawPipelineJob>) -> Vec<JobReference> {
        let mut state = lock(&self.0);
        match event {
            Event::Init => {
                state.listing.insert(watched.to_owned(), HashSet::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                state.listing.entry(watched.to_owned()).or_default().insert(object.uid().unwrap_or_default());
                state.update(object)
            }
            Event::InitDone => {
                let listed = state.listing.remove(watched).unwrap_or_default();
                let is_watched = |folder: &Folder| watched.is_empty() || folder.namespace == watched;
                let of_watch = state.users.iter().filter(|(folder, _)| is_watched(folder));
                let uids = of_watch.flat_map(|(_, users)| users).map(|user| &user.job.uid);
                let absent: HashSet<String> = uids.filter(|uid| !listed.contains(*uid)).cloned().collect();
                absent.iter().flat_map(|uid| state.leave(uid)).collect()
            }
            Event::Apply(object) => state.update(object),
            Event::Delete(object) => state.leave(&object.uid().unwrap_or_default()),
        }
    }

    /// Gives the job its folder, unless another job holds the folder. A job that `runs` keeps the folder in which it
    /// runs, while it has a living pod. `has_pods` returns whether the job with the given UID has a living pod.
    pub(crate) fn claim(&self, uid: &str, runs: bool, has_pods: impl Fn(&str) -> bool) -> Result<(), FolderTaken> {
        let mut state = lock(&self.0);
        let Some((_, named)) = state.of_job.get(uid).cloned() else { return Ok(()) };
        let Some(folder) = named else {
            state.take(uid, None);
            return Ok(());
        };
        let users = state.users.entry(folder.clone()).or_default();
        users.retain(|user| user.left.is_none() || !user.is_expired() && has_pods(&user.job.uid));
        let holder = users.iter().min_by_key(|user| (user.precedence(), user.created, &user.job.uid));
        let taken = holder
            .filter(|holder| holder.job.uid != uid && !(runs && has_pods(uid)))
            .map(|holder| holder.folder_taken_error(&folder));
        if let Some(own) = users.iter_mut().find(|user| user.job.uid == uid) {
            own.accepted = taken.is_none();
        }
        if taken.is_none() {
            state.take(uid, Some(&folder));
        }
        taken.map_or(Ok(()), Err)
    }

    /// Removes the expired entries of jobs that have left their folder.
    pub(crate) fn clean_up(&self) {
        lock(&self.0).users.retain(|_, users| {
            users.retain(|user| !user.is_expired());
            !users.is_empty()
        });
    }
}

impl User {
    /// Whether the pods of a job that has left the folder no longer keep other jobs out of it.
    fn is_expired(&self) -> bool {
        matches!(self.left, Some(Departure::Since(left)) if left.elapsed() >= LEAVE_TIMEOUT)
    }

    /// Whether the job was accepted with the folder and has taken no other folder since.
    fn has_folder(&self) -> bool {
        self.accepted && !matches!(self.left, Some(Departure::Since(_)))
    }

    /// Returns a smaller number for a job that takes precedence: the job that was accepted, then the jobs whose pods
    /// still use the folder, then the jobs that wait.
    fn precedence(&self) -> u8 {
        match self.left {
            None if self.accepted => 0,
            Some(_) => 1,
            None => 2,
        }
    }

    fn folder_taken_error(&self, folder: &Folder) -> FolderTaken {
        let (name, Folder { claim, path, .. }) = (&self.job.name, folder);
        let path = path.escape_debug();
        let message = match self.left {
            Some(Departure::Since(_)) => format!(
                "pods of the job {name} still use the folder \"{path}\" of claim {claim}, which this job also uses: \
                 this job starts when these pods have ended"
            ),
            Some(Departure::Waiting) => format!(
                "pods of the job {name} still use the folder \"{path}\" of claim {claim}, which this job also uses, \
                 because {name} can't have the folder that its spec now names: correct the spec of {name} or delete \
                 {name}; this job starts when these pods have ended"
            ),
            None => format!(
                "the job {name} has the folder \"{path}\" of claim {claim}, and two jobs in one folder would take \
                 the folder from each other: give this job its own folder with spec.storage.path, or delete {name}; \
                 this job starts when {name} has ended or is deleted"
            ),
        };
        let retry_delay = self.left.map(|departure| match departure {
            Departure::Since(_) => LEAVING_RETRY_DELAY,
            Departure::Waiting => WAITING_RETRY_DELAY,
        });
        FolderTaken { message, retry_delay }
    }
}

impl State {
    /// Records the folder of a job. If the job has left another folder, returns the other jobs of that folder.
    fn update(&mut self, object: &RawPipelineJob) -> Vec<JobReference> {
        let uid = object.uid().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let status = FolderStatus::of(object);
        if !status.may_run(object) {
            return self.leave(&uid);
        }
        let before = self.of_job.get(&uid).cloned();
        let known = before.as_ref().filter(|(of, _)| *of == generation).map(|(_, named)| named.clone());
        let named = known.or_else(|| named_folder(object));
        let is_same = before.and_then(|(_, folder)| folder) == named.clone().flatten();
        let waiting = if is_same { Vec::new() } else { self.change(&uid) };
        match &named {
            Some(named) => self.of_job.insert(uid.clone(), (generation, named.clone())),
            None => self.of_job.remove(&uid),
        };
        let Some(folder) = named.flatten() else { return waiting };
        let namespace = folder.namespace.clone();
        let users = self.users.entry(folder).or_default();
        let own = users.iter().position(|user| user.job.uid == uid).map(|at| users.swap_remove(at));
        users.push(User {
            accepted: own.is_some_and(|own| own.has_folder()) || status.is_accepted(generation),
            job: JobReference { name: object.name_any(), namespace, uid },
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            left: None,
        });
        waiting
    }

    /// Records that the spec of a job no longer names the job's folder. The job keeps this folder for its pods until it
    /// takes another folder. Returns the other jobs of the folder.
    fn change(&mut self, uid: &str) -> Vec<JobReference> {
        let before = self.of_job.remove(uid).and_then(|(_, folder)| folder);
        let Some(users) = before.and_then(|folder| self.users.get_mut(&folder)) else { return Vec::new() };
        // a job that was never accepted with the folder has no pods in it
        users.retain(|user| user.job.uid != uid || user.has_folder());
        users.iter_mut().filter(|user| user.job.uid == uid).for_each(|user| user.left = Some(Departure::Waiting));
        users.iter().filter(|user| user.left.is_none()).map(|user| user.job.clone()).collect()
    }

    /// Records that a job was deleted or has ended. Returns the other jobs of its folders.
    fn leave(&mut self, uid: &str) -> Vec<JobReference> {
        let current = self.of_job.remove(uid).and_then(|(_, folder)| folder);
        let mut waiting = Vec::new();
        for (folder, users) in &mut self.users {
            let is_left = |user: &User| match user.left {
                None => current.as_ref() == Some(folder),
                Some(left) => matches!(left, Departure::Waiting),
            };
            let Some(at) = users.iter().position(|user| user.job.uid == uid && is_left(user)) else { continue };
            match users.get_mut(at) {
                Some(own) if own.accepted => own.left = Some(Departure::Since(Instant::now())),
                // a job that was never accepted with the folder has no pods in it
                _ => drop(users.swap_remove(at)),
            }
            waiting.extend(users.iter().filter(|user| user.left.is_none()).map(|user| user.job.clone()));
        }
        waiting
    }

    /// Records that a job takes its folder; `None` stands for a job without a folder. The job leaves the other folders
    /// that it had.
    fn take(&mut self, uid: &str, taken: Option<&Folder>) {
        let others = self.users.iter_mut().filter(|(folder, _)| taken != Some(*folder)).flat_map(|(_, users)| users);
        for user in others.filter(|user| user.job.uid == uid && matches!(user.left, Some(Departure::Waiting))) {
            user.left = Some(Departure::Since(Instant::now()));
        }
    }
}

/// The part of a status that shows whether a job has a folder.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FolderStatus {
    observed_generation: Option<i64>,
    phase: JobPhase,
    attempt: Option<IgnoredAny>,
    conditions: Vec<Condition>,
}

impl FolderStatus {
    /// Returns the status, or the default status if the object has no readable status.
    fn of(object: &RawPipelineJob) -> FolderStatus {
        serde_json::from_str::<Option<FolderStatus>>(object.status()).ok().flatten().unwrap_or_default()
    }

    fn accepted(&self) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == condition_type::ACCEPTED)
    }

    fn is_accepted(&self, generation: i64) -> bool {
        self.observed_generation == Some(generation) && self.accepted().is_some_and(|it| it.status == "True")
    }

    /// Whether pods of the job may use the folder of the current spec, now or later.
    fn may_run(&self, object: &RawPipelineJob) -> bool {
        let is_refused = self.attempt.is_none()
            && self.observed_generation == object.metadata.generation
            && self.accepted().is_some_and(|it| it.status == "False" && it.reason != condition_reason::FOLDER_TAKEN);
        let is_deleted = object.metadata.deletion_timestamp.is_some();
        job::is_managed_here(object) && !self.phase.has_ended() && !is_refused && !is_deleted
    }
}

/// Returns the folder that the spec names, which is `None` if the folder is not on a PersistentVolumeClaim. Returns
/// `None` for a spec that can't be read.
fn named_folder(object: &RawPipelineJob) -> Option<Option<Folder>> {
    let spec = StoredSpec::from_json(object.spec()).ok()?.spec;
    let Some((claim, sub_path)) = build::workspace_claim(&spec) else { return Some(None) };
    let job = PipelineJob::new(object.name_any(), spec);
    let parts = [sub_path.as_str(), job.folder()];
    let parts = parts.iter().flat_map(|part| part.split('/')).filter(|part| !["", "."].contains(part));
    let namespace = object.namespace().unwrap_or_default();
    Some(Some(Folder { namespace, claim, path: parts.collect::<Vec<_>>().join("/") }))
}

#[cfg(test)]
mod tests;
