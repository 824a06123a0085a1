//! Tests of the folders, without a cluster.

use serde_json::{Value, json};

use super::*;

/// Returns a job that the cluster created at `second`.
fn job(name: &str, second: u32, path: &str, status: Value) -> RawPipelineJob {
    let created = format!("2026-01-01T00:00:{second:02}Z");
    let metadata = json!({"name": name, "namespace": "ml", "uid": name, "generation": 1, "creationTimestamp": created});
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
    assert_eq!(folders.claim("older", true, |uid| uid == "older"), Ok(()));
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
        let retry = Some(LEAVING_RETRY_DELAY);
        assert!(taken.retry_delay == retry && taken.message.starts_with("pods of the job old still use"), "{taken:?}");
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

/// Lets the time pass for which the pods of jobs that have left a folder keep other jobs out of it.
fn pass_leave_timeout(folders: &Folders) {
    for user in lock(&folders.0).users.values_mut().flatten() {
        if let Some(Departure::Since(left)) = &mut user.left {
            *left = left.checked_sub(LEAVE_TIMEOUT).unwrap();
        }
    }
}

/// Returns the event of a running job after an edit of its path. A spec with the path `None` can't be read.
fn moved(path: Option<&str>, generation: i64) -> Event<RawPipelineJob> {
    let status = json!({"phase": "Running", "observedGeneration": 1, "attempt": {"number": 1}});
    let mut object = serde_json::to_value(job("moved", 1, path.unwrap_or_default(), status)).unwrap();
    object["metadata"]["generation"] = generation.into();
    if path.is_none() {
        object["spec"]["stages"] = "two".into();
    }
    Event::Apply(serde_json::from_value(object).unwrap())
}

#[test]
fn a_job_that_is_refused_another_folder_keeps_the_folder_in_which_its_pods_run() {
    let folders = Folders::default();
    let lives = |uid: &str| uid == "moved" || uid == "holder";
    folders.apply("", &moved(Some("first"), 1));
    folders.apply("", &Event::Apply(job("holder", 2, "second", Value::Null)));
    folders.apply("", &Event::Apply(job("next", 0, "first", Value::Null)));
    folders.apply("", &Event::Apply(job("last", 3, "second", Value::Null)));
    assert_eq!(folders.claim("moved", true, lives), Ok(()));
    assert_eq!(folders.claim("holder", false, lives), Ok(()));
    let is_kept = || {
        pass_leave_timeout(&folders);
        folders.clean_up();
        let taken = folders.claim("next", false, lives).unwrap_err();
        assert!(taken.message.contains("correct the spec of moved or delete moved"), "{taken:?}");
        assert_eq!(taken.retry_delay, Some(WAITING_RETRY_DELAY));
    };
    assert_eq!(waiting(&folders.apply("", &moved(Some("second"), 2))), ["next"]);
    assert!(folders.claim("moved", false, lives).unwrap_err().message.contains("job holder"));
    is_kept();
    // the job no longer waits for the other folder, in which it had no pods
    assert_eq!(waiting(&folders.apply("", &moved(None, 3))), ["holder", "last"]);
    folders.apply("", &Event::Delete(job("holder", 2, "second", Value::Null)));
    assert_eq!(folders.claim("last", false, |uid| uid == "moved"), Ok(()));
    is_kept();
    // after the edit is reverted, the job still has its folder
    folders.apply("", &moved(Some("first"), 4));
    assert!(folders.claim("next", false, lives).unwrap_err().message.contains("the job moved has"));
    assert_eq!(folders.claim("moved", true, lives), Ok(()));
}

#[test]
fn a_folder_is_free_after_its_pods_have_ended_or_its_job_has_taken_another() {
    let lives = |uid: &str| uid == "moved";
    let start = || {
        let folders = Folders::default();
        folders.apply("", &moved(Some("first"), 1));
        folders.apply("", &Event::Apply(job("next", 0, "first", Value::Null)));
        assert_eq!(folders.claim("moved", true, lives), Ok(()));
        folders.apply("", &moved(None, 2));
        folders
    };
    // without pods, the job loses the folder, even if it returns to it
    let folders = start();
    assert_eq!(folders.claim("next", false, |_| false), Ok(()));
    folders.apply("", &moved(Some("first"), 3));
    assert!(folders.claim("moved", true, |_| false).unwrap_err().message.contains("the job next has"));
    // the pods of a job that has taken another folder, was deleted or is absent from a list keep it for a limited time
    let elsewhere = |folders: &Folders| {
        folders.apply("", &moved(Some("second"), 3));
        assert_eq!(folders.claim("moved", false, lives), Ok(()));
    };
    let deleted = |folders: &Folders| drop(folders.apply("", &Event::Delete(job("moved", 1, "first", Value::Null))));
    let absent = |folders: &Folders| {
        folders.apply("", &Event::Init);
        folders.apply("", &Event::InitApply(job("next", 0, "first", Value::Null)));
        assert_eq!(waiting(&folders.apply("", &Event::InitDone)), ["next"]);
    };
    let ways: [&dyn Fn(&Folders); 3] = [&elsewhere, &deleted, &absent];
    for leave in ways {
        let folders = start();
        leave(&folders);
        assert_eq!(folders.claim("next", false, lives).unwrap_err().retry_delay, Some(LEAVING_RETRY_DELAY));
        pass_leave_timeout(&folders);
        assert_eq!(folders.claim("next", false, lives), Ok(()));
    }
}

/// The pods of the refused job are in another folder, and the pods of the holder may all have ended for a moment.
#[test]
fn a_refused_job_that_is_deleted_keeps_no_job_out_of_the_folder() {
    let folders = Folders::default();
    let lives = |uid: &str| uid == "moved";
    folders.apply("", &Event::Apply(job("holder", 1, "shared", Value::Null)));
    assert_eq!(folders.claim("holder", false, lives), Ok(()));
    folders.apply("", &moved(Some("own"), 1));
    assert_eq!(folders.claim("moved", true, lives), Ok(()));
    folders.apply("", &moved(Some("shared"), 2));
    assert!(folders.claim("moved", false, lives).unwrap_err().message.contains("job holder"));
    folders.apply("", &Event::Delete(job("moved", 1, "shared", Value::Null)));
    assert_eq!(folders.claim("holder", true, lives), Ok(()));
    folders.apply("", &Event::Apply(job("next", 0, "shared", Value::Null)));
    assert!(folders.claim("next", false, lives).unwrap_err().message.contains("the job holder has"));
}
