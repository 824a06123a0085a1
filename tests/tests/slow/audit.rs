//! `stagecoach audit` accepts an honest run, even if the run lost a stage or resumed with a different number of stages.
//! It refuses a forged run and names the place of the forgery.

use std::path::{Path, PathBuf};

use serde_json::Value;
use stagecoach_checkpoint::{FileSystemVolume, Manifest, read_manifest};
use stagecoach_tests::fixture::{copy, records};
use stagecoach_tests::{Launched, TestJob, checkpoints, corpus, each, run, text};

use crate::replay::{change_manifest, change_metrics, disturbed, job};

/// The workspace with the runs from which the test makes forgeries.
struct Forge {
    workspace: tempfile::TempDir,
}

/// A kind of forgery.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    Loss,
    GradientNorm,
    LearningRateLine,
    MissingLine,
    ExchangedLines,
    ExchangedCheckpoint,
    Weight,
    Moment,
    LearningRate,
    Corpus,
    Counter,
    Result,
}

use Forgery::*;

const KINDS: [Forgery; 12] = [
    Loss,
    GradientNorm,
    LearningRateLine,
    MissingLine,
    ExchangedLines,
    ExchangedCheckpoint,
    Weight,
    Moment,
    LearningRate,
    Corpus,
    Counter,
    Result,
];

const STEPS: u64 = 40;

fn small() -> TestJob {
    TestJob { stages: 1, ..job(STEPS) }
}

fn manifest(job: &Path, step: u64) -> Manifest {
    read_manifest(&FileSystemVolume::new(job), step).unwrap()
}

/// Removes the receipts (hashes over all steps so far) and each checkpoint's link to the previous checkpoint. Records
/// of older versions have neither, so only a replay can detect a forgery in them.
fn strip(job: &Path) {
    for step in checkpoints(job) {
        change_manifest(job, step, |manifest| {
            let progress = manifest.metadata.progress.as_object_mut().unwrap();
            ["receipt", "previous"].into_iter().for_each(|field| drop(progress.remove(field)));
        });
    }
    change_result(job, |result| drop(result.as_object_mut().unwrap().remove("receipt")));
}

fn change_result(job: &Path, change: impl FnOnce(&mut Value)) {
    let path = job.join("result.json");
    let mut result = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut result);
    std::fs::write(path, result.to_string()).unwrap();
}

/// Flips a bit of a tensor whose name ends with `suffix`, and sets all hashes to those of the new bytes.
pub fn flip(job: &Path, step: u64, suffix: &str, draws: &mut corpus::Draws) {
    let is_wanted = |name: &str| match suffix {
        "" => !name.contains(".exp_avg"),
        suffix => name.ends_with(suffix),
    };
    change_manifest(job, step, |manifest| {
        let names: Vec<usize> =
            (0..manifest.tensors.len()).filter(|at| is_wanted(&manifest.tensors[*at].name)).collect();
        let tensor = &mut manifest.tensors[names[draws.below(names.len() as u64) as usize]];
        let path = job.join(format!("checkpoints/step-{step:08}/{}", tensor.file));
        let mut bytes = std::fs::read(&path).unwrap();
        let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
        bytes[range.start + draws.below(tensor.bytes) as usize] ^= 1 << draws.below(8);
        tensor.blake3 = blake3::hash(&bytes[range]).to_hex().to_string();
        let file = manifest.files.iter_mut().find(|file| file.name == tensor.file).unwrap();
        file.blake3 = blake3::hash(&bytes).to_hex().to_string();
        std::fs::write(path, bytes).unwrap();
    });
}

impl Forge {
    fn new() -> Forge {
        let workspace = corpus::workspace();
        Launched::start(workspace.path(), &small(), &[]).finish(workspace.path()).hashes();
        Forge { workspace }
    }

    fn honest(&self) -> PathBuf {
        self.workspace.path().join("small")
    }

    /// Returns the folder of a run with another seed. The first call trains the run.
    fn other(&self) -> PathBuf {
        let folder = self.workspace.path().join("other");
        if !folder.exists() {
            let other = TestJob { name: "other".into(), ..small() };
            let seed = ["--set", "training.seed=7"];
            Launched::start(self.workspace.path(), &other, &seed).finish(self.workspace.path()).hashes();
        }
        folder
    }

    /// Returns the folder of a run that trained its steps 11 to 20 with another learning rate. The job's settings in
    /// its checkpoints (`identity` in the manifest) claim the original learning rate.
    fn other_rate(&self) -> PathBuf {
        let folder = self.workspace.path().join("rate");
        if !folder.exists() {
            let until = |steps, peak: &str| {
                let job = TestJob { name: "rate".into(), ..TestJob { steps, ..small() } };
                let _ = std::fs::remove_file(folder.join("result.json"));
                let set = format!("training.learningRate.peak={peak}");
                Launched::start(self.workspace.path(), &job, &["--set", &set]).finish(self.workspace.path()).hashes();
            };
            let claim = |peak: f64| {
                for step in checkpoints(&folder) {
                    change_manifest(&folder, step, |manifest| {
                        manifest.metadata.identity["training"]["learningRate"]["peak"] = peak.into();
                    });
                }
            };
            until(10, "1e-2");
            claim(2e-2);
            until(20, "2e-2");
            claim(1e-2);
            until(STEPS, "1e-2");
            let honest = records(&self.honest());
            change_metrics(&folder, |lines| {
                lines
                    .iter_mut()
                    .zip(honest)
                    .for_each(|(line, honest)| line["learningRate"] = honest["learningRate"].clone())
            });
        }
        folder
    }

    /// Returns the folder of a run on another corpus. The job's settings in its checkpoints (`identity` in the
    /// manifest) claim the original corpus.
    fn other_corpus(&self) -> PathBuf {
        let folder = self.workspace.path().join("corpus-run");
        if !folder.exists() {
            let elsewhere = corpus::workspace();
            std::fs::write(elsewhere.path().join("corpus/small.jsonl"), corpus::jsonl(400, 40, 8)).unwrap();
            Launched::start(elsewhere.path(), &small(), &[]).finish(elsewhere.path()).hashes();
            copy(&elsewhere.path().join("small"), &folder);
            let claimed = manifest(&self.honest(), 10).metadata.identity;
            for step in checkpoints(&folder) {
                change_manifest(&folder, step, |manifest| manifest.metadata.identity = claimed.clone());
            }
        }
        folder
    }

    /// Makes a forged run. Returns its folder, and the words with which an audit must report the place of the forgery.
    fn forge(
        &self,
        name: &str,
        kind: Forgery,
        without_receipts: bool,
        draws: &mut corpus::Draws,
    ) -> (PathBuf, Vec<String>) {
        let folder = self.workspace.path().join(name);
        let from = match kind {
            LearningRate => self.other_rate(),
            Corpus => self.other_corpus(),
            _ => self.honest(),
        };
        copy(&from, &folder);
        let step = 1 + draws.below(STEPS);
        let at = step as usize - 1;
        let saved = 10 * (1 + draws.below(STEPS / 10));
        let of_checkpoint = vec![format!("checkpoint of step {saved}")];
        let of_step = vec![format!("step {step} has")];
        let mut printed = match kind {
            Loss => {
                change_metrics(&folder, |lines| {
                    let loss = lines[at]["loss"].as_f64().unwrap() as f32;
                    lines[at]["loss"] = f32::from_bits(loss.to_bits() ^ 1 << draws.below(20)).into();
                });
                of_step
            }
            GradientNorm => {
                change_metrics(&folder, |lines| {
                    let norm = lines[at]["gradientNorm"].as_f64().unwrap();
                    lines[at]["gradientNorm"] = f64::from_bits(norm.to_bits() ^ 1 << draws.below(50)).into();
                });
                of_step
            }
            LearningRateLine => {
                change_metrics(&folder, |lines| {
                    lines[at]["learningRate"] = (lines[at]["learningRate"].as_f64().unwrap() * 1.01).into();
                });
                of_step
            }
            MissingLine => {
                change_metrics(&folder, |lines| drop(lines.remove(at)));
                of_step
            }
            ExchangedLines => {
                let other = (at + 1 + draws.below(STEPS - 1) as usize) % STEPS as usize;
                change_metrics(&folder, |lines| lines.swap(at, other));
                vec!["metrics.jsonl is the record of step".to_owned()]
            }
            ExchangedCheckpoint => {
                let claimed = manifest(&folder, saved).metadata.identity;
                copy(
                    &self.other().join(format!("checkpoints/step-{saved:08}")),
                    &folder.join(format!("checkpoints/step-{saved:08}")),
                );
                change_manifest(&folder, saved, |manifest| manifest.metadata.identity = claimed);
                of_checkpoint
            }
            Weight => {
                flip(&folder, saved, "", draws);
                of_checkpoint
            }
            Moment => {
                flip(&folder, saved, [".exp_avg", ".exp_avg_sq"][draws.below(2) as usize], draws);
                of_checkpoint
            }
            LearningRate => vec!["step 1".into()],
            Corpus => vec!["step 1 has the loss".into()],
            Counter => {
                change_manifest(&folder, saved, |manifest| manifest.metadata.progress["updates"] = 3.into());
                of_checkpoint
            }
            Result => {
                change_result(&folder, |result| result["weightsHash"] = "00".into());
                vec!["result.json has the weights hash 00".into()]
            }
        };
        // the receipts of these runs would reveal the changed identities, so a forger removes the receipts
        if matches!(kind, LearningRate | Corpus) || without_receipts {
            strip(&folder);
        } else if matches!(kind, ExchangedCheckpoint | Weight | Moment | Counter) {
            // the link in the next checkpoint reveals the forgery before a replay does
            printed = vec![format!("step {saved}")];
        }
        (folder, printed)
    }
}

fn forgeries(count: usize, seed: u64) {
    let forge = Forge::new();
    let mut draws = corpus::Draws(seed);
    let kinds = KINDS.into_iter().cycle().take(count).enumerate();
    let forged = kinds.map(|(index, kind)| {
        let without_receipts = (index / KINDS.len()).is_multiple_of(2);
        (kind, forge.forge(&format!("forged-{index}"), kind, without_receipts, &mut draws))
    });
    each("forgeries", &forged.collect::<Vec<_>>(), |index, (kind, (folder, printed))| {
        let (code, words) = run(&["audit", text(folder), "--all"]);
        let place = printed.iter().find(|place| !words.contains(*place));
        assert!(code == Some(74) && place.is_none(), "{index}, {kind:?}: {code:?}, no {place:?} in\n{words}");
        std::fs::remove_dir_all(folder).unwrap();
    });
}

#[test]
fn forged_runs_are_refused_with_the_place() {
    forgeries(2 * KINDS.len(), 5);
}

#[test]
#[ignore = "takes a few minutes"]
fn a_hundred_forged_runs_are_refused_with_the_place() {
    forgeries(100, 17);
}

#[test]
fn a_run_with_a_hard_life_passes() {
    let workspace = corpus::workspace();
    let folder = disturbed(workspace.path(), &job(STEPS));
    let (code, printed) = run(&["audit", text(&folder), "--all", "--stages", "1"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(
        printed.contains("the record agrees with its receipts") && printed.contains("steps 1 to 10: equal"),
        "{printed}"
    );
    assert_eq!(printed.matches(": equal").count(), checkpoints(&folder).len(), "{printed}");
    // the result beside a single checkpoint is that of a later step
    let single = folder.join("checkpoints/step-00000010");
    let (code, printed) = run(&["audit", text(&single), "--sample", "1", "--stages", "1"]);
    assert_eq!(code, Some(0), "{printed}");
    // the sample is random, and the same seed draws the same sample
    let intervals = |printed: &str| -> Vec<String> {
        printed.lines().filter(|line| line.ends_with(": equal")).map(str::to_owned).collect()
    };
    let (code, printed) = run(&["audit", text(&folder), "--sample", "2"]);
    assert_eq!((code, intervals(&printed).len()), (Some(0), 2), "{printed}");
    let (_, seed) = printed.split_once("--seed ").unwrap();
    let again = run(&["audit", text(&folder), "--sample", "2", "--seed", seed.lines().next().unwrap()]).1;
    assert_eq!(intervals(&again), intervals(&printed));
}
