//! Runs a job under the real launcher, and kills processes of the job again and again: single stages, or the launcher
//! with all its stages. In the second case, the job continues with another number of stages or replicas.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::corpus::Draws;
use crate::phases::{Phase, send, stop_in};
use crate::{Deadline, Launched, Outcome, TestJob, is_gone, saved, until};

/// The number of kills that each phase needs before the soak chooses phases at random.
pub const ENOUGH: usize = 3;
/// The time for which the soak waits until a stage reaches a phase. After this time, it draws another phase and stage.
const PATIENCE: Duration = Duration::from_secs(4);

/// A soak test in progress.
#[derive(Debug)]
pub struct Soak<'a> {
    workspace: &'a Path,
    job: &'a TestJob,
    launched: Option<Launched>,
    /// The pairs of numbers of stages and replicas that the job may have.
    meshes: &'a [(usize, usize)],
    mesh: (usize, usize),
    draws: Draws,
    /// The killed stages. A process in this list does not count as running.
    dead: Vec<u32>,
    /// The step of the newest checkpoint seen.
    newest: u64,
    /// The number of kills by phase.
    pub kills: BTreeMap<Phase, usize>,
    /// The number of kills of the launcher.
    pub launcher_kills: usize,
    /// The number of spares that were killed together with a stage.
    pub spare_kills: usize,
    /// The number of started groups for each pair of numbers of stages and replicas.
    pub counts: BTreeMap<(usize, usize), usize>,
}

impl<'a> Soak<'a> {
    /// Starts `job`, which must have no end (see [`TestJob::endless`]). The first group has the job's numbers of stages
    /// and replicas. Later groups have the numbers in `meshes`.
    pub fn start(workspace: &'a Path, job: &'a TestJob, meshes: &'a [(usize, usize)], seed: u64) -> Soak<'a> {
        let kills = Phase::RECURRING.map(|phase| (phase, 0)).into();
        let mut soak = Soak {
            workspace,
            job,
            launched: None,
            meshes,
            mesh: (job.stages, job.data_parallel),
            draws: Draws(seed),
            dead: Vec::new(),
            newest: 0,
            kills,
            launcher_kills: 0,
            spare_kills: 0,
            counts: BTreeMap::new(),
        };
        soak.launch();
        soak
    }

    fn launch(&mut self) {
        *self.counts.entry(self.mesh).or_default() += 1;
        let (stages, data_parallel) = self.mesh;
        let job = TestJob { stages, data_parallel, ..self.job.clone() };
        self.launched = Some(Launched::start(self.workspace, &job, &[]));
    }

    /// Returns the last step in the metrics. A restart discards the steps after its checkpoint.
    pub fn step(&self) -> u64 {
        last_step(&self.folder().join("metrics.jsonl")).unwrap_or(0)
    }

    /// Returns the job's folder.
    pub fn folder(&self) -> PathBuf {
        self.workspace.join(&self.job.name)
    }

    /// Waits until the job has reached `step` and has a checkpoint.
    pub fn wait_for(&mut self, step: u64) {
        let mut best = (self.step(), Deadline::start());
        while best.0 < step || saved(&self.folder()) == 0 {
            self.check();
            std::thread::sleep(Duration::from_millis(5));
            let now = self.step();
            if now > best.0 {
                best = (now, Deadline::start());
            }
            assert!(!best.1.is_over(), "no step beyond {}: {}", best.0, self.printed());
        }
    }

    /// Kills a stage in the middle of a phase, or the launcher while one of its stages is stopped in that phase. The
    /// kill happens at `step` at the earliest, except in the phase `Load`.
    pub fn strike(&mut self, step: u64) {
        let (phase, stage) = self.catch(step);
        self.check_checkpoints();
        *self.kills.entry(phase).or_default() += 1;
        if self.draws.below(3) > 0 {
            self.dead = vec![stage];
            if self.draws.below(3) == 0 {
                let spares = self.launched.as_ref().unwrap().waiting_spares();
                self.spare_kills += spares.len();
                self.dead.extend(spares);
            }
            // the other stages continue to run
            self.dead.iter().for_each(|&pid| send(pid, libc::SIGKILL));
            self.wait_for_the_dead();
            *self.counts.entry(self.mesh).or_default() += 1;
        } else {
            self.launcher_kills += 1;
            let mut launched = self.launched.take().unwrap();
            launched.child.kill().unwrap();
            launched.child.wait().unwrap();
            drop(launched);
            // in half of the cases, the next launcher starts before the stages of this launcher have ended
            if self.draws.below(2) == 0 {
                self.wait_for_the_dead();
            }
            // the next mesh is one with the fewest groups so far, so that every mesh occurs soon
            let groups = |mesh: &(usize, usize)| self.counts.get(mesh).copied().unwrap_or_default();
            let mut others: Vec<_> = self.meshes.iter().copied().filter(|mesh| *mesh != self.mesh).collect();
            let fewest = others.iter().map(groups).min();
            others.retain(|mesh| Some(groups(mesh)) == fewest);
            self.mesh = others[self.draws.below(others.len() as u64) as usize];
            self.launch();
        }
    }

    /// Stops the job, and trains a job that resumes from its checkpoint and ends soon. Returns that job and its
    /// outcome.
    pub fn finish(mut self) -> (TestJob, Outcome) {
        self.group(); // a launcher handles signals only while it has stages
        self.launched.take().unwrap().interrupt(self.workspace);
        let rest = self.job.ending_after(saved(&self.folder()));
        let outcome = Launched::start(self.workspace, &rest, &[]).finish(self.workspace);
        (rest, outcome)
    }

    /// Stops a stage in a phase. Returns the phase and the stage's process id.
    fn catch(&mut self, step: u64) -> (Phase, u32) {
        // the first group has no checkpoint to load
        let mut phase = self.draw(!self.dead.is_empty());
        if phase != Phase::Load {
            self.wait_for(step);
        }
        let deadline = Deadline::start();
        loop {
            let stages = self.group();
            let rank = if phase.is_of_stage_0() { 0 } else { self.draws.below(stages.len() as u64) as usize };
            if stop_in(stages[rank], phase, PATIENCE) {
                self.dead = stages.clone();
                return (phase, stages[rank]);
            }
            assert!(!deadline.is_over(), "no stage was caught in {phase:?}: {}", self.printed());
            phase = self.draw(false);
        }
    }

    /// Returns a phase with too few kills, or any phase if every phase has enough.
    fn draw(&mut self, may_load: bool) -> Phase {
        let may = |phase: &Phase| may_load || *phase != Phase::Load;
        let all: Vec<Phase> = Phase::RECURRING.into_iter().filter(may).collect();
        let lacking: Vec<Phase> = all.iter().copied().filter(|phase| self.kills[phase] < ENOUGH).collect();
        let choice = if lacking.is_empty() { all } else { lacking };
        choice[self.draws.below(choice.len() as u64) as usize]
    }

    /// Waits until all stages of the current group run, and returns them.
    fn group(&mut self) -> Vec<u32> {
        let deadline = Deadline::start();
        loop {
            self.check();
            let stages = self.launched.as_ref().unwrap().stages();
            let (of_each, replicas) = self.mesh;
            if stages.len() == of_each * replicas && !stages.iter().any(|pid| self.dead.contains(pid) || is_gone(*pid))
            {
                return stages;
            }
            assert!(
                !deadline.is_over(),
                "{} stages instead of {}: {}",
                stages.len(),
                of_each * replicas,
                self.printed()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_the_dead(&self) {
        until("the end of what was killed", || self.dead.iter().all(|&pid| is_gone(pid)).then_some(()));
    }

    /// Asserts that the launcher has not ended by itself.
    fn check(&mut self) {
        if let Some(status) = self.launched.as_mut().unwrap().child.try_wait().unwrap() {
            panic!("the launcher ended with {status} after step {}: {}", self.step(), self.printed());
        }
    }

    /// Asserts that the newest checkpoint is not older than the newest one seen before.
    fn check_checkpoints(&mut self) {
        let newest = saved(&self.folder());
        assert!(newest >= self.newest, "checkpoint {} is gone, the newest is {newest}", self.newest);
        self.newest = newest;
    }

    fn printed(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.workspace.join(name)).unwrap_or_default();
        read("stdout") + &read("stderr")
    }
}

/// Returns the last step in the metrics, or `None` if the file has no complete line. The function reads only the file's
/// end, since the soak calls it often.
fn last_step(metrics: &Path) -> Option<u64> {
    let mut file = File::open(metrics).ok()?;
    let end = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(end.saturating_sub(4096))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines: Vec<&str> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
    serde_json::from_str::<serde_json::Value>(lines.last()?).ok()?["step"].as_u64()
}
