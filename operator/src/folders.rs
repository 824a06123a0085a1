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
    /// The time at which the job left the folder, because it was deleted, ended or took another folder; `None` until
    /// then. The job's pods may still use the folder.
    left: Option<Instant>,
}

/// The folders of all jobs that are not over.
#[derive(Debug, Default)]
pub(crate) struct Folders(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    users: HashMap<Folder, Vec<User>>,
    /// The generation of each job's spec and the folder that the spec names, by job UID.
    of_job: HashMap<String, (i64, Folder)>,
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
                let is_absent = |uid: &String, folder: &Folder| {
                    (watched.is_empty() || folder.namespace == watched) && !listed.contains(uid)
                };
                let absent = state.of_job.iter().filter(|(uid, (_, folder))| is_absent(uid, folder));
                let absent: Vec<String> = absent.map(|(uid, _)| uid.clone()).collect();
                absent.iter().flat_map(|uid| state.leave(uid)).collect()
            }
            Event::Apply(object) => state.update(object),
            Event::Delete(object) => state.leave(&object.uid().unwrap_or_default()),
        }
    }

    /// Gives the job its folder, unless another job holds the folder. A job that `runs` keeps the folder in which it
    /// runs. `has_pods` returns whether the job with the given UID has a living pod.
    pub(crate) fn claim(&self, uid: &str, runs: bool, has_pods: impl Fn(&str) -> bool) -> Result<(), FolderTaken> {
        let mut state = lock(&self.0);
        let Some((_, folder)) = state.of_job.get(uid).cloned() else { return Ok(()) };
        let users = state.users.entry(folder.clone()).or_default();
        users.retain(|user| user.left.is_none_or(|left| left.elapsed() < LEAVE_TIMEOUT && has_pods(&user.job.uid)));
        let holder = users.iter().min_by_key(|user| (user.left.is_none(), !user.accepted, user.created, &user.job.uid));
        let taken =
            holder.filter(|holder| holder.job.uid != uid && !runs).map(|holder| holder.folder_taken_error(&folder));
        if let Some(own) = users.iter_mut().find(|user| user.job.uid == uid) {
            own.accepted = taken.is_none();
        }
        taken.map_or(Ok(()), Err)
    }

    /// Removes the expired entries of jobs that have left their folder.
    pub(crate) fn clean_up(&self) {
        lock(&self.0).users.retain(|_, users| {
            users.retain(|user| user.left.is_none_or(|left| left.elapsed() < LEAVE_TIMEOUT));
            !users.is_empty()
        });
    }
}

impl User {
    fn folder_taken_error(&self, folder: &Folder) -> FolderTaken {
        let (name, Folder { claim, path, .. }) = (&self.job.name, folder);
        let path = path.escape_debug();
        let is_leaving = self.left.is_some();
        let message = match is_leaving {
            true => format!(
                "pods of the job {name} still use the folder \"{path}\" of claim {claim}, which this job also uses: \
                 this job starts when these pods have ended"
            ),
            false => format!(
                "the job {name} has the folder \"{path}\" of claim {claim}, and two jobs in one folder would take \
                 the folder from each other: give this job its own folder with spec.storage.path, or delete {name}; \
                 this job starts when {name} has ended or is deleted"
            ),
        };
        FolderTaken { message, is_leaving }
    }
}

impl State {
    /// Records the folder of a job. If the job has left another folder, returns the other jobs of that folder.
    fn update(&mut self, object: &RawPipelineJob) -> Vec<JobReference> {
        let uid = object.uid().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let known = self.of_job.get(&uid).filter(|(of, _)| *of == generation).map(|(_, folder)| folder.clone());
        let status = FolderStatus::of(object);
        let folder = match status.may_run(object) {
            true => known.or_else(|| folder_of(object)),
            false => None,
        };
        let before = self.of_job.get(&uid).map(|(_, folder)| folder);
        let waiting = if before == folder.as_ref() { Vec::new() } else { self.leave(&uid) };
        let Some(folder) = folder else { return waiting };
        self.of_job.insert(uid.clone(), (generation, folder.clone()));
        let namespace = folder.namespace.clone();
        let users = self.users.entry(folder).or_default();
        let own = users.iter().position(|user| user.job.uid == uid).map(|at| users.swap_remove(at));
        users.push(User {
            accepted: own.is_some_and(|own| own.accepted && own.left.is_none()) || status.is_accepted(generation),
            job: JobReference { name: object.name_any(), namespace, uid },
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            left: None,
        });
        waiting
    }

    /// Records that a job has left its folder. Returns the other jobs of that folder.
    fn leave(&mut self, uid: &str) -> Vec<JobReference> {
        let Some((_, folder)) = self.of_job.remove(uid) else { return Vec::new() };
        let users = self.users.get_mut(&folder).map_or(&mut [][..], Vec::as_mut_slice);
        users.iter_mut().filter(|user| user.job.uid == uid).for_each(|user| user.left = Some(Instant::now()));
        users.iter().filter(|user| user.left.is_none()).map(|user| user.job.clone()).collect()
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

/// Returns the folder that the spec names; `None` if the spec can't be read or the folder is not on a
/// PersistentVolumeClaim.
fn folder_of(object: &RawPipelineJob) -> Option<Folder> {
    let spec = StoredSpec::from_json(object.spec()).ok()?.spec;
    let (claim, sub_path) = build::workspace_claim(&spec)?;
    let job = PipelineJob::new(object.name_any(), spec);
    let parts = [sub_path.as_str(), job.folder()];
    let parts = parts.iter().flat_map(|part| part.split('/')).filter(|part| !["", "."].contains(part));
    Some(Folder { namespace: object.namespace().unwrap_or_default(), claim, path: parts.collect::<Vec<_>>().join("/") })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a job that the cluster created at `second`.
    fn job(name: &str, second: u32, path: &str, status: Value) -> RawPipelineJob {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let metadata =
            json!({"name": name, "namespace": "ml", "uid": name, "generation": 1, "creationTimestamp": created});
        let claim = json!({"claimName": "training"});
        let spec = json!({"stages": 2, "storage": {"persistentVolumeClaim": claim, "path": path}});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    fn waiting(names: &[JobReference]) -> Vec<&str> {
        names.iter().map(|job| job.name.as_str()).collect()
    }

    fn accepted(status: &str, reason: &str) -> Value {
        let condition = json!({"type": "Accepted", "status": status, "reason": reason, "message": "m"});
        json!({"observedGeneration": 1, "conditions": [condition]})
    }

    #[test]
    fn the_accepted_job_has_the_folder_else_the_oldest() {
        let folders = Folders::default();
        let no_pods = |_: &str| false;
        let claim = |name: &str| folders.claim(name, false, no_pods).map_err(|taken| taken.message);
        folders.apply("", &Event::Apply(job("young", 2, "./shared//", Value::Null)));
        folders.apply("", &Event::Apply(job("old", 1, "shared", Value::Null)));
        folders.apply("", &Event::Apply(job("apart", 1, "shared/own", Value::Null)));
        assert!(claim("young").unwrap_err().starts_with("the job old has the folder \"shared\" of claim training"));
        assert_eq!((claim("old"), claim("apart"), claim("unknown")), (Ok(()), Ok(()), Ok(())));
        folders.apply("", &Event::Apply(job("older", 0, "shared", Value::Null)));
        assert!(claim("older").unwrap_err().contains("job old "), "an accepted job keeps its folder");
        // after a restart, the operator knows only the statuses of the jobs
        let folders = Folders::default();
        folders.apply("", &Event::Apply(job("older", 0, "shared", accepted("False", "FolderTaken"))));
        folders.apply("", &Event::Apply(job("old", 1, "shared", accepted("True", "Valid"))));
        assert!(folders.claim("older", false, no_pods).is_err());
        assert_eq!(folders.claim("old", false, no_pods), Ok(()));
        // a running job keeps the folder in which it runs
        assert_eq!(folders.claim("older", true, no_pods), Ok(()));
    }

    #[test]
    fn a_job_that_is_over_deleted_or_invalid_leaves_its_folder_to_the_next() {
        let over = job("old", 1, "shared", json!({"phase": "Failed"}));
        let mut deleted = job("old", 1, "shared", Value::Null);
        deleted.metadata.deletion_timestamp.clone_from(&deleted.metadata.creation_timestamp);
        let gone = [
            Event::Apply(over),
            Event::Apply(deleted),
            Event::Apply(job("old", 1, "shared", accepted("False", "InvalidSpec"))),
            Event::Delete(job("old", 1, "shared", Value::Null)),
        ];
        for event in gone {
            let folders = Folders::default();
            folders.apply("", &Event::Apply(job("old", 1, "shared", Value::Null)));
            folders.apply("", &Event::Apply(job("young", 2, "shared", Value::Null)));
            assert_eq!(folders.claim("old", false, |_| false), Ok(()));
            assert_eq!(waiting(&folders.apply("", &event)), ["young"]);
            let taken = folders.claim("young", false, |uid| uid == "old").unwrap_err();
            assert!(taken.is_leaving && taken.message.starts_with("pods of the job old still use"), "{taken:?}");
            assert_eq!(folders.claim("young", false, |_| false), Ok(()));
        }
    }

    #[test]
    fn a_job_that_a_new_list_lacks_has_left() {
        let folders = Folders::default();
        folders.apply("ml", &Event::Apply(job("old", 1, "shared", Value::Null)));
        folders.apply("ml", &Event::Init);
        folders.apply("ml", &Event::InitApply(job("young", 2, "shared", Value::Null)));
        assert!(folders.claim("young", false, |_| false).is_err(), "the list is not complete");
        assert_eq!(waiting(&folders.apply("ml", &Event::InitDone)), ["young"]);
        assert_eq!(folders.claim("young", false, |_| false), Ok(()));
    }
}
