//! Injects faults into every call that the coordinator (stage 0) or another stage makes on the volume. The faults are
//! crashes before, during and after the call, with and without power loss; a single failure; and a success that the
//! volume reports as an error.

use std::sync::Arc;

use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

use crate::common::*;

/// The state of the volume before the attempt with faults, and the attempt's last step. The scenarios together cover a
/// start, a load, the move of damaged checkpoints, the removal of stale fences, saves and prunes.
#[derive(Clone, Copy)]
struct CrashScenario {
    saved: u64,
    /// Whether the newest checkpoint is damaged.
    damaged: bool,
    until: u64,
    mount: Mount,
}

const FIRST: CrashScenario = CrashScenario { saved: 0, damaged: false, until: 2, mount: Mount::Local };
const RESUMED: CrashScenario = CrashScenario { saved: 3, until: 5, ..FIRST };
const DAMAGED: CrashScenario = CrashScenario { saved: 3, damaged: true, until: 4, ..FIRST };

impl CrashScenario {
    fn volume(self) -> MemoryVolume {
        let volume = MemoryVolume::new();
        if self.saved > 0 {
            TestGroup::new(&volume).run(self.saved).unwrap();
        }
        if self.damaged {
            let flip = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
            assert!(volume.edit(&format!("{}/stage-1.model.safetensors", paths::checkpoint_path(self.saved)), flip));
        }
        volume
    }

    /// Returns the newest intact step.
    fn intact(self) -> u64 {
        self.saved - u64::from(self.damaged)
    }

    /// Returns a group on `volume` in which `rank` uses `faulty`.
    fn group(self, volume: &MemoryVolume, rank: usize, faulty: &FaultyVolume<OneFault>) -> TestGroup {
        let mut group = self.mount.group(volume);
        group.volumes[rank] = Arc::new(faulty.clone());
        group.acknowledged = self.intact();
        group
    }

    /// Returns the calls that `rank` makes without faults.
    fn calls(self, rank: usize) -> Vec<VolumeCall> {
        let volume = self.volume();
        let counting = FaultyVolume::counting(self.mount.volume(&volume));
        assert!(self.group(&volume, rank, &counting).run(self.until).unwrap() == state_at(self.until));
        counting.trace()
    }

    /// Asserts that the committed checkpoints are intact, unless the scenario damages one, and that a new attempt ends
    /// with the same bytes as a run without faults.
    fn assert_resumes(self, volume: &MemoryVolume, acknowledged: u64, context: &str) {
        let mut next = self.mount.group(volume);
        let until = self.until + 2;
        if !self.damaged {
            check(volume);
        }
        assert!(next.run(until).unwrap() == state_at(until), "{context}: other bytes at the end");
        let resumed = next.resumed;
        assert!((acknowledged..=acknowledged + 1).contains(&resumed), "{context}: {resumed}, not {acknowledged}");
        assert!(self.damaged || next.warnings.is_empty(), "{context}: {:?}", next.warnings);
        assert_eq!(check(volume), [until, until - 1], "{context}");
        assert!(volume.files("fences").is_empty(), "{context}: left {:?}", volume.files("fences"));
        assert_eq!(volume.list("fences").unwrap().len(), 1, "{context}");
    }

    fn crash_everywhere(self) {
        let mut crashes = 0;
        let prepared = self.volume();
        for rank in [0, 1] {
            for (at, call) in self.calls(rank).iter().enumerate() {
                for fault in [VolumeFault::CrashBefore, VolumeFault::CrashAfter, VolumeFault::CrashDuring] {
                    crashes += 1;
                    let mixed = PowerLoss::Mixed(crashes);
                    for loss in [None, Some(PowerLoss::Lost), Some(PowerLoss::Kept), Some(mixed)] {
                        let context = format!("stage {rank}, call {at} {call:?}, crash {crashes}, {loss:?}");
                        let volume = prepared.deep_copy();
                        let faulty = FaultyVolume::failing(self.mount.volume(&volume), at, fault);
                        let mut group = self.group(&volume, rank, &faulty);
                        let ended = group.run(self.until);
                        assert!(faulty.has_fired(), "{context}");
                        // the run may succeed after the crash, because the group ignores some errors
                        assert!(ended.as_ref().err().is_none_or(Crashed::is), "{context}: {ended:?}");
                        if let Some(loss) = loss {
                            volume.cut_power(loss);
                        }
                        self.assert_resumes(&volume, group.acknowledged, &context);
                        // unlike a real file system, `Mixed` may lose a renamed folder under both names
                        if self.damaged && loss != Some(mixed) {
                            let kept = volume.files("damaged");
                            assert!(kept.iter().any(|f| f.ends_with("manifest.json")), "{context}: {kept:?}");
                        }
                    }
                }
            }
        }
        println!("{crashes} crashes, each with and without three kinds of power loss");
    }
}

#[test]
fn a_crash_at_any_call_leaves_the_old_or_the_new_checkpoint_intact() {
    RESUMED.crash_everywhere();
}

#[test]
fn a_crash_at_any_call_of_the_first_attempt() {
    FIRST.crash_everywhere();
}

#[test]
fn a_crash_at_any_call_while_damage_is_quarantined() {
    DAMAGED.crash_everywhere();
}

/// On NFS, every client may also use cached names that other clients have changed.
#[test]
fn a_crash_at_any_call_of_a_client_of_nfs() {
    for scenario in [FIRST, RESUMED, DAMAGED] {
        CrashScenario { mount: Mount::Nfs, ..scenario }.crash_everywhere();
    }
}

#[test]
fn every_operation_is_enumerated() {
    let operations = |rank| RESUMED.calls(rank).into_iter().map(|call| call.operation).collect::<Vec<_>>();
    for operation in
        ["make_dir", "list", "create", "write", "sync", "open", "size", "read_at", "rename", "sync_dir", "remove_file"]
    {
        assert!(operations(0).contains(&operation), "{operation}");
    }
    for operation in ["create", "write", "sync", "open", "read_at", "sync_dir"] {
        assert!(operations(1).contains(&operation), "{operation}");
    }
}

#[test]
fn a_failing_call_costs_at_most_one_save() {
    for (rank, error) in [(0, ENOSPC), (0, EIO), (1, ENOSPC), (1, EIO)] {
        for (at, call) in RESUMED.calls(rank).into_iter().enumerate() {
            let context = format!("stage {rank}, error {error}, call {at} {call:?}");
            let volume = RESUMED.volume();
            let faulty = FaultyVolume::failing(Arc::new(volume.clone()), at, VolumeFault::Fail(error));
            let mut group = RESUMED.group(&volume, rank, &faulty);
            group.tolerant = true;
            let ended = group.run(RESUMED.until);
            assert!(faulty.has_fired(), "{context}");
            // a failed start ends the attempt, and a failed save or prune adds one failure: each reports the error
            let errors: Vec<_> = group.failures.iter().chain(ended.as_ref().err()).map(ToString::to_string).collect();
            let [error_text] = &errors[..] else { panic!("{context}: {errors:?}") };
            assert!(error_text.contains(&format!("os error {error}")), "{context}: {error_text}");
            let steps = check(&volume);
            if ended.is_ok() {
                assert!(steps[0] >= RESUMED.until - 1, "{context}: {steps:?}");
            }
            RESUMED.assert_resumes(&volume, steps[0], &context);
        }
    }
}

#[test]
fn a_call_that_nfs_retried_is_not_a_failure() {
    for (at, call) in DAMAGED.calls(0).into_iter().enumerate() {
        let answers: &[i32] = match call.operation {
            // a commit is the only rename whose target may exist
            "rename"
                if call.path.starts_with("fences/") && call.path.contains("/step-") && !call.path.ends_with(".txt") =>
            {
                &[ENOENT, EEXIST, ENOTEMPTY]
            }
            "rename" => &[ENOENT],
            "make_dir" => &[EEXIST],
            "remove_file" | "remove_dir" => &[ENOENT],
            _ => continue,
        };
        for &answer in answers {
            let context = format!("call {at} {call:?} answers {answer}");
            let volume = DAMAGED.volume();
            let faulty = FaultyVolume::failing(Arc::new(volume.clone()), at, VolumeFault::ErrorAfterSuccess(answer));
            let ended = DAMAGED.group(&volume, 0, &faulty).run(DAMAGED.until);
            assert!(ended.unwrap_or_else(|e| panic!("{context}: {e}")) == state_at(DAMAGED.until), "{context}");
            DAMAGED.assert_resumes(&volume, DAMAGED.until, &context);
        }
    }
}
