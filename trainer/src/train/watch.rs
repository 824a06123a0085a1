//! What is known of this stage from outside its main thread: whether it was asked to stop, what it is doing, and its
//! last words should it be ended from elsewhere (a lost group, a panic, a signal).

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stagecoach_api::contract::{FailureKind, StageEnv, StagePhase, TerminationMessage};
use stagecoach_group::Activity;

use crate::observe::Board;

/// A stage's state, shared by its threads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stop: AtomicBool,
    formed: AtomicBool,
    leaving: AtomicBool,
    stage: u32,
    board: Board,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    activity: Option<Activity>,
    doing: String,
    step: Option<u64>,
    ended: bool,
}

impl Watch {
    /// Of the stage that `env` describes.
    pub fn new(env: &StageEnv) -> Watch {
        let state = Mutex::default();
        let off = || AtomicBool::new(false);
        let board = Board::new(env);
        Watch(Arc::new(Inner { stop: off(), formed: off(), leaving: off(), stage: env.rank, board, state }))
    }

    /// What others may see of this stage.
    pub fn board(&self) -> &Board {
        &self.0.board
    }

    /// Whether the stage was asked to stop at the next boundary.
    pub fn stop_requested(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// SIGTERM: stop at the next boundary; before the first there is nothing to wait for.
    pub fn terminate(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
        self.0.board.phase(StagePhase::Draining);
        if !self.0.formed.load(Ordering::Relaxed) {
            self.end(FailureKind::Drained, "asked to stop before training began");
        }
    }

    /// The group has formed.
    pub fn formed(&self) {
        self.0.formed.store(true, Ordering::Relaxed);
        self.0.board.phase(StagePhase::Training);
        if self.stop_requested() {
            self.end(FailureKind::Drained, "asked to stop before training began");
        }
    }

    /// All is done: a peer that leaves first is no failure any more.
    pub fn leaving(&self) {
        self.0.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether [`Watch::leaving`] was called.
    pub fn is_leaving(&self) -> bool {
        self.0.leaving.load(Ordering::Relaxed)
    }

    /// From now on heartbeats carry what this stage does.
    pub fn attach(&self, activity: Activity) {
        self.state().activity = Some(activity);
    }

    /// A phase outside the step's program.
    pub fn doing(&self, what: &str) {
        let mut state = self.state();
        state.doing = what.to_owned();
        if let Some(activity) = &state.activity {
            activity.set(what, None);
        }
    }

    /// A step begins.
    pub fn step(&self, step: u64) {
        self.state().step = Some(step);
    }

    /// Ends the process with `kind`'s exit code and a termination message; the first caller wins, others wait for it.
    pub fn end(&self, kind: FailureKind, message: &str) -> ! {
        let mut state = self.state();
        if !state.ended {
            state.ended = true;
            let mut words = TerminationMessage::new(kind, self.0.stage, message);
            words.step = state.step;
            words.checkpoint = self.0.board.snapshot().checkpoint;
            words.progress = Some(self.0.board.snapshot().progress).filter(|progress| progress.step > 0);
            let doing = state.activity.as_ref().map_or_else(|| state.doing.clone(), Activity::text);
            words.action = (!doing.is_empty()).then_some(doing);
            last_words(&words);
            if !matches!(kind, FailureKind::Done) {
                // a log on a full volume: `eprintln!` would panic, and its hook wait for ever for the lock held here
                let _ = writeln!(std::io::stderr(), "stage {}: {message}", self.0.stage);
            }
            // not `exit`: other threads may be inside libtorch, whose destructors must not run under them
            // SAFETY: ends the process at once; everything worth keeping has been written.
            unsafe { libc::_exit(kind.exit_code().code()) }
        }
        drop(state);
        loop {
            std::thread::park();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a termination message where the kubelet, or the launcher, will look for it.
pub fn last_words(words: &TerminationMessage) {
    let path =
        std::env::var_os("STAGECOACH_TERMINATION_LOG").map_or_else(|| "/dev/termination-log".into(), PathBuf::from);
    if let Err(error) = std::fs::write(&path, words.to_json()) {
        tracing::debug!("no termination message at {}: {error}", path.display());
    }
}
