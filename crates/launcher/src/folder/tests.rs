use super::*;

fn put(folder: &Path, names: &[&str]) {
    for name in names {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}"))),
            false => found.push(name),
        }
    }
    found.sort();
    found
}

fn refused(folder: &Path, job_file: Option<&Path>) -> String {
    let before = files(folder);
    let error = JobFolder::open(folder, job_file).unwrap_err();
    assert_eq!(error.kind().exit_code().code(), 78);
    assert_eq!(files(folder), before);
    error.to_string()
}

#[test]
fn a_new_folder_may_hold_the_job_file_and_nothing_else() {
    let workspace = tempfile::tempdir().unwrap();
    let at = |name: &str| workspace.path().join(name);
    JobFolder::open(&at("runs/mine"), None).unwrap();
    JobFolder::open(&at("runs/mine"), None).unwrap();
    put(&at("runs/mine"), &[".job.yaml.swp", "job.yaml"]);
    JobFolder::open(&at("runs/mine"), Some(&at("runs/mine/job.yaml"))).unwrap();
    assert!(refused(&at("runs/mine"), None).contains("runs/mine is not a job's folder: it holds job.yaml, which"));
    assert!(refused(&at("runs/mine"), Some(&at("runs"))).contains("job.yaml"));
    put(&at("runs/mine"), &["logs/a.txt"]);
    assert!(refused(&at("runs/mine"), Some(&at("runs/mine/job.yaml"))).contains("it holds logs, which"));
    // stage 0 was killed while it fetched the model
    put(&at("fetching"), &["remote-models.json", "remote-models.json.0123456789abcdef.partial"]);
    JobFolder::open(&at("fetching"), None).unwrap();
    // this job file has the name of a file that the run would overwrite
    put(&at("other"), &["resolved-job.yaml"]);
    assert!(refused(&at("other"), Some(&at("other/resolved-job.yaml"))).contains("resolved-job.yaml"));
    put(&at("many"), &["a", "b", "c", "d", "e"]);
    assert!(refused(&at("many"), None).contains("it holds a, b, c and 2 more, which"));
    put(&at("named-alike"), &["lock", "fences/garden.txt", "checkpoints/step-00000001/a.txt", "state.json"]);
    assert!(refused(&at("named-alike"), None).contains("checkpoints, fences, lock and 1 more"));
}

#[test]
fn a_jobs_folder_is_recognised_regardless_of_its_creator() {
    let made: [&[(&str, &str)]; 5] = [
        &[("lock", "17\n"), ("logs/stage-0.log", "")],
        // the launcher died before it wrote its process id
        &[("lock", "")],
        &[("fences/0007/0123456789abcdef/metrics.jsonl", ""), ("metrics.jsonl", "")],
        &[("fences/0006.fenced/a/b", "")],
        // the user copied these files from a cluster
        &[("checkpoints/step-00000300/manifest.json", "")],
    ];
    for made in made {
        let workspace = tempfile::tempdir().unwrap();
        for (name, content) in made {
            put(workspace.path(), &[name]);
            fs::write(workspace.path().join(name), content).unwrap();
        }
        JobFolder::open(workspace.path(), None).unwrap();
    }
}

#[test]
fn only_files_that_jobs_create_are_removed() {
    let workspace = tempfile::tempdir().unwrap();
    let folder = JobFolder::open(&workspace.path().join("mine"), None).unwrap();
    let root = folder.root();
    let foreign = [
        "checkpoints/best/weights.bin",
        "corpus.txt",
        "damaged/car.jpg",
        "fences/garden.txt",
        "job.yaml",
        "lock",
        "logs/mytext.txt",
        "logs/stage-00.log",
        "notes.17.partial",
        "plots/mine.svg",
        "termination/stage-x.json",
        "windows/mine/ids.bin",
    ];
    let own = [
        "state.json",
        "state.json.17.partial",
        "result.json",
        "metrics.jsonl",
        "resolved-job.yaml",
        "logs/stage-0.log",
        "logs/stage-12.log",
        "plots/loss.svg",
        "termination/stage-1.json",
        "checkpoints/step-00000100/manifest.json",
        "checkpoints/step-00000200/manifest.json",
        "damaged/step-00000300/reason.txt",
        "fences/0001/0123456789abcdef/x",
        "windows/0123456789abcdef0123456789abcdef/0/0000000007/ids.bin",
    ];
    put(root, &foreign);
    assert!(folder.artifacts().unwrap().is_empty());
    put(root, &own);
    fs::create_dir(root.join("logs/stage-1.log")).unwrap();

    folder.start_run().unwrap();
    let removed = ["logs/stage-0.log", "logs/stage-12.log", "termination/stage-1.json", "result.json"];
    let mut remaining: Vec<&str> = foreign.iter().chain(&own).copied().filter(|name| !removed.contains(name)).collect();
    remaining.sort_unstable();
    assert_eq!(files(root), remaining);

    put(root, &removed);
    let artifacts = folder.artifacts().unwrap();
    let expected = "2 checkpoints (up to step 200), 1 damaged checkpoint, state.json.17.partial, result.json, metrics.jsonl, \
                state.json, resolved-job.yaml, logs, plots, termination, windows, fences";
    assert_eq!(artifacts.to_string(), expected);
    folder.remove(&artifacts).unwrap();
    assert_eq!(files(root), foreign);
    assert!(root.join("logs/stage-1.log").is_dir());
    assert!(folder.artifacts().unwrap().is_empty());
}

#[test]
fn empty_folders_are_removed_too() {
    let workspace = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (workspace.path().join("mine"), workspace.path().join("large-disk"));
    let folder = JobFolder::open(&root, None).unwrap();
    folder.start_run().unwrap();
    put(&root, &["logs/stage-0.log", "damaged/step-00000001/x", "fences/0001/x"]);
    put(&elsewhere, &["step-00000002/manifest.json", "other.txt"]);
    std::os::unix::fs::symlink(&elsewhere, root.join("checkpoints")).unwrap();
    folder.remove(&folder.artifacts().unwrap()).unwrap();
    assert_eq!(files(&elsewhere), ["other.txt"]);
    let left: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["checkpoints"], "links are not removed");
}

#[test]
fn a_workspace_below_a_file_is_named() {
    let workspace = tempfile::tempdir().unwrap();
    let file = workspace.path().join("file");
    fs::write(&file, "").unwrap();
    let error = JobFolder::open(&file.join("w/mine"), None).unwrap_err();
    assert!(error.to_string().contains("file/w") && error.kind().exit_code().code() == 74, "{error}");
}
