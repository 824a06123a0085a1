//! Simulates the calls that a trainer of three stages makes on the volume. The state at a step is a function of the
//! previous state, so that a run that resumes from wrong bytes also ends with wrong bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stagecoach_checkpoint::*;
use stagecoach_test_volumes::MemoryVolume;

pub const STAGES: usize = 3;
pub const RETENTION: RetentionPolicy = RetentionPolicy { keep_last: 2, keep_every: 0, best: None };
pub const KEEP_ONE: RetentionPolicy = RetentionPolicy { keep_last: 1, ..RETENTION };

/// The tensors of all stages, by name.
pub type TrainerState = BTreeMap<String, Vec<u8>>;

pub fn identity() -> Value {
    json!({"model": {"hiddenSize": 8}, "seed": 42})
}

pub fn metadata() -> CheckpointMetadata {
    CheckpointMetadata { attempt: 1, identity: identity(), ..CheckpointMetadata::default() }
}

/// Returns the state at `step` of a run without faults.
pub fn state_at(step: u64) -> TrainerState {
    let weights = (0..STAGES).flat_map(|rank| [(format!("layers.{rank}.w"), 64), (format!("layers.{rank}.norm"), 8)]);
    let all = weights.flat_map(|(name, size)| [(format!("exp_avg.{name}"), size), (name, size)]);
    let mut state = all.map(|(name, size)| (name, vec![7; size])).collect();
    for _ in 0..step {
        advance(&mut state);
    }
    state
}

fn advance(state: &mut TrainerState) {
    for (name, bytes) in state.iter_mut() {
        let mut hasher = blake3::Hasher::new();
        hasher.update(name.as_bytes()).update(bytes).finalize_xof().fill(bytes);
    }
}

pub fn belongs_to(name: &str, rank: usize) -> bool {
    name.contains(&format!("layers.{rank}."))
}

/// Returns the weights and the moments of a stage.
#[allow(clippy::type_complexity)]
pub fn views(state: &TrainerState, rank: usize) -> (Vec<(String, TensorView<'_>)>, Vec<(String, TensorView<'_>)>) {
    let view = |bytes| TensorView::new(Dtype::F32, vec![2, (<[u8]>::len(bytes)) / 8], bytes).unwrap();
    let owned = |optimizer: bool| {
        let mine = state.iter().filter(move |(n, _)| belongs_to(n, rank) && n.starts_with("exp_avg") == optimizer);
        mine.map(|(name, bytes)| (name.clone(), view(bytes))).collect()
    };
    (owned(false), owned(true))
}

/// The way in which the stages mount the volume.
#[derive(Clone, Copy, Debug)]
pub enum Mount {
    Local,
    /// Every stage mounts the volume over NFS, on a separate node.
    Nfs,
}

impl Mount {
    pub fn volume(self, volume: &MemoryVolume) -> Arc<dyn Volume> {
        match self {
            Mount::Local => Arc::new(volume.clone()),
            Mount::Nfs => Arc::new(volume.nfs_client()),
        }
    }

    pub fn group(self, volume: &MemoryVolume) -> TestGroup {
        match self {
            Mount::Local => TestGroup::new(volume),
            Mount::Nfs => TestGroup::with_volumes(std::array::from_fn(|_| self.volume(volume))),
        }
    }
}

/// The stages of one attempt. Each stage has a separate handle on the volume.
pub struct TestGroup {
    pub volumes: [Arc<dyn Volume>; STAGES],
    /// Whether the group continues after failed saves and prunes.
    pub tolerant: bool,
    pub fence: Option<Fence>,
    /// The newest step whose save succeeded.
    pub acknowledged: u64,
    pub failures: Vec<CheckpointError>,
    pub warnings: Vec<Warning>,
    /// The step from which the group resumed.
    pub resumed: u64,
}

impl TestGroup {
    pub fn new(volume: &MemoryVolume) -> TestGroup {
        TestGroup::with_volumes(std::array::from_fn(|_| Arc::new(volume.clone()) as Arc<dyn Volume>))
    }

    pub fn with_volumes(volumes: [Arc<dyn Volume>; STAGES]) -> TestGroup {
        TestGroup {
            volumes,
            tolerant: false,
            fence: None,
            acknowledged: 0,
            failures: Vec::new(),
            warnings: Vec::new(),
            resumed: 0,
        }
    }

    /// Starts the group, resumes, and trains to step `until` with a save after each step. Returns the final state.
    pub fn run(&mut self, until: u64) -> Result<TrainerState, CheckpointError> {
        let volume = self.volumes[0].clone();
        let fence = Fence::acquire(&*volume)?;
        self.fence = Some(fence.clone());
        let mut state = self.resume(&fence)?;
        remove_stale_fences(&*volume)?;
        for step in self.resumed + 1..=until {
            advance(&mut state);
            let saved = self.save(&fence, step, &state).and_then(|()| {
                self.acknowledged = step;
                prune(&*volume, &fence, RETENTION, step).map(drop)
            });
            match saved {
                Err(e) if self.tolerant => self.failures.push(e),
                saved => saved?,
            }
        }
        Ok(state)
    }

    /// Loads the newest intact checkpoint. Each stage reads its tensors. After all stages have loaded, the group moves
    /// the damaged checkpoints to `damaged/`.
    pub fn resume(&mut self, fence: &Fence) -> Result<TrainerState, CheckpointError> {
        let mut known = Vec::new();
        loop {
            let found = open_newest(&*self.volumes[0], VerifyLevel::Sizes, &known)?;
            let Some(loaded) = found.checkpoint else { return Ok(state_at(0)) };
            let step = loaded.manifest().step;
            let read: Result<Vec<TrainerState>, _> =
                (0..STAGES).map(|rank| read(&*self.volumes[rank], step, rank)).collect();
            match read {
                Err(CheckpointError::Damaged(damage)) => known.push(damage),
                read => {
                    let state = read?.into_iter().flatten().collect();
                    self.warnings.extend(quarantine(&*self.volumes[0], fence, &found.damage)?);
                    self.resumed = step;
                    return Ok(state);
                }
            }
        }
    }

    pub fn save(&self, fence: &Fence, step: u64, state: &TrainerState) -> Result<(), CheckpointError> {
        let save = fence.pending_checkpoint(step);
        if !save.begin(&*self.volumes[0], &identity())? {
            return Ok(());
        }
        let write = |rank: usize| {
            let (weights, moments) = views(state, rank);
            save.write_stage(&*self.volumes[rank], rank, &weights, &moments)
        };
        // all stages answer before the commit
        let answers: Vec<_> = (0..STAGES).map(write).collect();
        let stages = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let small = [("config.json".to_owned(), b"{}\n".to_vec())];
        save.commit(&*self.volumes[0], metadata(), &stages, &small).map(drop)
    }
}

fn read(volume: &dyn Volume, step: u64, rank: usize) -> Result<TrainerState, CheckpointError> {
    let loaded = open(volume, step)?;
    let names = state_at(0).into_keys().filter(|name| belongs_to(name, rank));
    names.map(|name| Ok((name.clone(), loaded.read(loaded.tensor(&name).unwrap())?))).collect()
}

/// Asserts that all checkpoints are intact and correct. Returns their steps, newest first.
pub fn check(volume: &dyn Volume) -> Vec<u64> {
    let listing = list(volume).unwrap();
    assert_eq!(listing.foreign, []);
    for &step in &listing.steps {
        let loaded = open(volume, step).unwrap();
        loaded.verify().unwrap();
        for (name, bytes) in state_at(step) {
            assert_eq!(loaded.read(loaded.tensor(&name).unwrap()).unwrap(), bytes, "{name} at step {step}");
        }
    }
    listing.steps
}

/// Returns all files below `path`, with their contents.
pub fn snapshot(volume: &MemoryVolume, path: &str) -> BTreeMap<String, Vec<u8>> {
    let content = |path: &String| {
        let file = volume.open(path).unwrap();
        let mut bytes = vec![0; file.size().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    };
    volume.files(path).into_iter().map(|path| (path.clone(), content(&path))).collect()
}
