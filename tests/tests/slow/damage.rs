//! Damage to the files of a checkpoint never makes training crash or continue with other weights. The job resumes from
//! the newest intact checkpoint, and keeps damaged checkpoints for inspection. If no checkpoint is intact, the job ends
//! with an error and does not start over.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use stagecoach_checkpoint::{Manifest, paths};
use stagecoach_tests::fixture::{COMMITTED, Case, Fixture, Ran, contents, flip, run_to_its_end};
use stagecoach_tests::{each, says, stagecoach};

const CHECKPOINT: &str = "{everySteps: 2, keepLast: 9, mode: Sync}";

/// Damage to the folder of the newest checkpoint, and its effects.
struct DamageKind {
    name: &'static str,
    act: fn(&Path),
    says: &'static [&'static str],
    /// The step after which training resumes, or `None` if it starts at step 1.
    from: Option<u64>,
}

fn fixture() -> Fixture {
    let mut fixture = crate::fixture();
    fixture.program = stagecoach();
    fixture
}

fn case(name: &str) -> Case<'_> {
    Case { name, checkpoint: CHECKPOINT, fault: "", restarts: 0 }
}

/// Returns the folder of the checkpoint `back` steps before the newest.
fn older(newest: &Path, back: u64) -> PathBuf {
    newest.with_file_name(paths::step_dir_name(COMMITTED[2] - back))
}

fn empty(folder: &Path) {
    fs::remove_dir_all(folder).unwrap();
    fs::create_dir(folder).unwrap();
}

/// Applies `change` to the manifest of a checkpoint, and writes the manifest with a valid digest.
fn rewrite(newest: &Path, change: fn(&mut Manifest)) {
    let path = newest.join(paths::MANIFEST_FILE);
    let mut manifest = Manifest::parse(&fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    fs::write(path, manifest.to_bytes().unwrap()).unwrap();
}

/// The kinds of damage: a flipped bit in each kind of file, and then greater damage.
const DAMAGES: &[DamageKind] = &[
    hit("weights of stage 0", |c| flip(&c.join("stage-0.model.safetensors")), &["stage-0.model.safetensors"]),
    hit("weights of stage 1", |c| flip(&c.join("stage-1.model.safetensors")), &["stage-1.model.safetensors"]),
    hit("moments of stage 0", |c| flip(&c.join("stage-0.optimizer.safetensors")), &["stage-0.optimizer.safetensors"]),
    hit("moments of stage 1", |c| flip(&c.join("stage-1.optimizer.safetensors")), &["stage-1.optimizer.safetensors"]),
    hit("the manifest", |c| flip(&c.join(paths::MANIFEST_FILE)), &["manifest.json", "BLAKE3"]),
    hit("a truncated shard", |c| cut(&c.join("stage-1.model.safetensors")), &["stage-1.model.safetensors", "bytes"]),
    hit("a truncated manifest", |c| cut(&c.join(paths::MANIFEST_FILE)), &["manifest.json", "BLAKE3"]),
    hit(
        "a missing shard",
        |c| fs::remove_file(c.join("stage-0.model.safetensors")).unwrap(),
        &["stage-0.model", "missing"],
    ),
    hit(
        "a missing manifest",
        |c| fs::remove_file(c.join(paths::MANIFEST_FILE)).unwrap(),
        &["manifest.json", "missing"],
    ),
    hit("an empty folder", empty, &["manifest.json", "missing"]),
    hit("a folder for a shard", |c| folder_for(&c.join("stage-1.model.safetensors")), &["stage-1.model", "folder"]),
    hit(
        "a link to nowhere for a shard",
        |c| link_for(&c.join("stage-1.model.safetensors")),
        &["stage-1.model", "missing"],
    ),
    hit("a newer format", |c| rewrite(c, |m| m.format_version += 1), &["manifest.json", "format version 2", "newer"]),
    hit("another step's manifest", |c| rewrite(c, |m| m.step -= 1), &["manifest.json", "step 2"]),
    DamageKind {
        name: "the newest two",
        act: |c| {
            empty(c);
            flip(&older(c, 1).join("stage-0.model.safetensors"));
        },
        says: &["step-00000003", "step-00000002"],
        from: Some(1),
    },
    DamageKind {
        name: "foreign files",
        act: |c| {
            fs::write(c.with_file_name("notes.txt"), "mine").unwrap();
            fs::create_dir(c.with_file_name("step-3")).unwrap();
            fs::write(c.join("README.md"), "mine").unwrap();
        },
        says: &["checkpoints/notes.txt is not a checkpoint of this job and was not changed", "checkpoints/step-3 "],
        from: Some(3),
    },
    DamageKind { name: "no checkpoint at all", act: |c| empty(c.parent().unwrap()), says: &[], from: None },
    DamageKind { name: "nothing at all", act: |c| empty(c.parent().unwrap().parent().unwrap()), says: &[], from: None },
];

const fn hit(name: &'static str, act: fn(&Path), says: &'static [&'static str]) -> DamageKind {
    DamageKind { name, act, says, from: Some(2) }
}

fn cut(file: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

fn folder_for(file: &Path) {
    fs::remove_file(file).unwrap();
    fs::create_dir(file).unwrap();
}

fn link_for(file: &Path) {
    fs::remove_file(file).unwrap();
    symlink("nowhere", file).unwrap();
}

#[test]
fn damage_costs_a_few_steps_and_never_a_bit() {
    let fixture = fixture();
    each("damages", DAMAGES, |at, damage| {
        println!("{}", damage.name);
        let name = &format!("case-{at}");
        let folder = fixture.stopped(name);
        let newest = folder.join(paths::checkpoint_path(COMMITTED[2]));
        (damage.act)(&newest);
        let ran = fixture.run(&case(name));
        ran.ended_well(&fixture);
        damage.says.iter().for_each(|words| says(&ran.outcome, words));
        match damage.from {
            Some(step) => says(&ran.outcome, &format!("resuming after step {step}, ")),
            None => says(&ran.outcome, "steps 1 to"),
        }
        // damaged/ contains only the checkpoints that are newer than the step after which training resumed, each with a
        // reason
        let newer = COMMITTED.iter().filter(|&&step| damage.from.is_some_and(|from| step > from));
        let expected: Vec<String> = newer.map(|&step| paths::step_dir_name(step)).collect();
        let damaged = folder.join("damaged");
        assert_eq!(names(&damaged), expected, "{}", damage.name);
        for step in expected {
            let reason = fs::read_to_string(damaged.join(&step).join(paths::REASON_FILE)).unwrap();
            assert!(damage.says.iter().any(|words| reason.contains(words)), "{reason}");
        }
        if damage.name == "foreign files" {
            assert!(newest.with_file_name("notes.txt").exists() && newest.with_file_name("step-3").exists());
        }
    });
}

#[test]
fn damage_to_what_training_does_not_read_costs_nothing() {
    let fixture = fixture();
    let newest = fixture.stopped("unread").join(paths::checkpoint_path(COMMITTED[2]));
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", paths::WEIGHTS_INDEX_FILE] {
        flip(&newest.join(file));
    }
    let ran = fixture.run(&Case { checkpoint: "{everySteps: 2, keepLast: 1}", ..case("unread") });
    ran.ended_well(&fixture);
    says(&ran.outcome, "resuming after step 3, ");
}

/// Damages each checkpoint in a different way. The job must end with exit code 74 and change nothing.
fn none_is_intact(acts: [fn(&Path); 3]) {
    let fixture = fixture();
    let folder = fixture.stopped("none");
    for (step, act) in COMMITTED.iter().zip(acts) {
        act(&folder.join(paths::checkpoint_path(*step)));
    }
    let before = contents(&folder.join("checkpoints"));
    let ran = fixture.run(&case("none"));
    refused(&ran, 74, &["no checkpoint in", "is intact", "step-00000001", "step-00000002", "step-00000003"]);
    assert!(contents(&folder.join("checkpoints")) == before, "something was changed");
    assert_eq!(names(&folder.join("damaged")), [""; 0]);
}

#[test]
fn checkpoints_of_which_none_is_intact_are_no_fresh_start() {
    none_is_intact([empty, |c| flip(&c.join(paths::MANIFEST_FILE)), |c| cut(&c.join("stage-1.optimizer.safetensors"))]);
}

#[test]
fn nor_are_those_in_which_damage_shows_when_they_are_read() {
    let flipped: fn(&Path) = |c| flip(&c.join("stage-1.model.safetensors"));
    none_is_intact([flipped; 3]);
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let fixture = fixture();
    type Act = fn(&Path);
    let cases: &[(&str, Act, i32, &[&str])] = &[
        ("a file for the job's folder", |f| fs::write(f, "").unwrap(), 74, &["case-0"]),
        ("a link to nowhere for the job's folder", |f| symlink("nowhere/at/all", f).unwrap(), 74, &["case-1"]),
        ("a file for the checkpoints", |f| file_in(f, "checkpoints"), 74, &["case-2/checkpoints"]),
        ("a file for the fences", |f| file_in(f, "fences"), 74, &["case-3/fences"]),
        (
            "a folder for the metrics",
            |f| fs::create_dir(jobs(f).join("metrics.jsonl")).unwrap(),
            74,
            &["metrics.jsonl"],
        ),
    ];
    each("folders", cases, |at, (what, act, code, words)| {
        println!("{what}");
        let name = &format!("case-{at}");
        act(&fixture.path(name));
        refused(&fixture.run(&case(name)), *code, words);
    });
}

#[test]
fn checkpoints_that_cannot_be_reached_are_no_fresh_start() {
    let fixture = fixture();
    let folder = fixture.stopped("away");
    fs::rename(folder.join("checkpoints"), folder.join("elsewhere")).unwrap();
    symlink("nowhere/at/all", folder.join("checkpoints")).unwrap();
    let ran = fixture.run(&case("away"));
    refused(&ran, 74, &["away/checkpoints"]);
    assert!(!ran.outcome.stdout.contains("step   1/"), "{}", ran.outcome.stdout);
}

#[test]
fn a_damaged_checkpoint_that_cannot_be_quarantined_stays() {
    let fixture = fixture();
    let folder = fixture.with_leftovers("aside");
    fs::write(folder.join("damaged"), "in the way").unwrap();
    let ran = fixture.run(&case("aside"));
    refused(&ran, 74, &["could not set aside", "damaged-step-00000003"]);
    fs::remove_file(folder.join("damaged")).unwrap();
    let ran = fixture.run(&case("aside"));
    ran.ended_well(&fixture);
    assert!(folder.join("damaged/step-00000003").join(paths::MANIFEST_FILE).exists());
}

/// A stage reports the error. On a machine that can mount a read-only file system, the launcher reports the error too.
#[test]
fn a_read_only_volume_is_named() {
    let fixture = crate::fixture();
    let folder = fixture.stopped("fixed");
    let before = contents(&folder.join("checkpoints"));
    let ran = fixture.run(&Case { fault: "read-only", ..case("fixed") });
    refused(&ran, 74, &["fixed/fences", "Read-only file system"]);
    assert!(contents(&folder.join("checkpoints")) == before);
    drop(ran); // dropping `ran` removes its folder
    fixture.stopped("fixed");
    let mut unshare = Command::new("unshare");
    let script =
        "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && echo mounted && shift && exec \"$@\"";
    unshare.args(["--mount", "sh", "-c", script, "sh"]).arg(&folder).arg(stagecoach());
    unshare.arg("run").arg(fixture.job(&case("fixed"))).arg("--workspace").arg(fixture.path(""));
    let outcome = match Command::new("unshare").arg("--version").output() {
        Ok(_) => run_to_its_end(&mut unshare, &fixture.path("fixed.notes")),
        Err(_) => return println!("without a real mount: there is no `unshare`"),
    };
    if !outcome.stdout.contains("mounted") {
        return println!("without a real mount: only root may make one ({})", outcome.stderr.trim());
    }
    assert_eq!(outcome.status.code(), Some(74), "{}\n{}", outcome.stdout, outcome.stderr);
    says(&outcome, "fixed");
    says(&outcome, "Read-only file system");
    assert!(contents(&folder.join("checkpoints")) == before);
}

#[test]
fn another_models_checkpoint_is_refused_by_what_differs() {
    let fixture = fixture();
    let folder = fixture.stopped("other");
    let before = contents(&folder.join("checkpoints"));
    let case = case("other");
    let file = fixture.job(&case);
    let job = fs::read_to_string(&file).unwrap();
    fs::write(&file, job.replace("hiddenSize: 32", "hiddenSize: 64")).unwrap();
    let ran = fixture.run_file(&case, &file);
    refused(&ran, 78, &["hiddenSize is 64 here and 32 in the checkpoint"]);
    assert!(contents(&folder.join("checkpoints")) == before);
}

fn refused(ran: &Ran, code: i32, words: &[&str]) {
    let outcome = &ran.outcome;
    assert_eq!(outcome.status.code(), Some(code), "{}\n{}", outcome.stdout, outcome.stderr);
    words.iter().for_each(|words| says(outcome, words));
    assert!(!outcome.stderr.contains("panicked") && outcome.result.is_none(), "{}", outcome.stderr);
}

/// Creates a job's folder, which a launcher recognizes by the file `lock` in it. Returns the folder.
fn jobs(folder: &Path) -> &Path {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("lock"), "1\n").unwrap();
    folder
}

fn file_in(folder: &Path, name: &str) {
    fs::write(jobs(folder).join(name), "").unwrap();
}

/// Returns the names in a folder, sorted. Returns no names if the folder does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
