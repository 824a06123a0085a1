//! What all reconciles share.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kube::Client;
use kube::runtime::events::Recorder;

use crate::apply::Gangs;
use crate::observe::{Polls, Trouble, Watched};
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::written::Written;

/// What all reconciles share.
pub(crate) struct Context {
    /// The API.
    pub client: Client,
    /// How the operator is run.
    pub settings: Settings,
    /// What the watch knows of pods.
    pub watched: Watched,
    /// What was written last.
    pub written: Written,
    /// Which schedulers there are.
    pub gangs: Gangs,
    /// What stages 0 said.
    pub polls: Polls,
    /// What is counted.
    pub telemetry: Telemetry,
    /// Tells events.
    pub recorder: Recorder,
    /// By job UID.
    memos: Mutex<HashMap<String, Memo>>,
}

/// What is known of a job beside what is recorded; whoever starts anew does without.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memo {
    /// What was refused last.
    pub refused: Option<Trouble>,
    /// How often in a row the API failed.
    pub failures: u32,
    /// The attempt of which all pods were seen: one that is missing then has vanished, though the status may not say yet
    /// that they were all there.
    pub created: Option<u64>,
}

impl Context {
    /// With nothing known yet.
    pub(crate) fn new(client: Client, settings: Settings, recorder: Recorder) -> Context {
        let polls = Polls::new(settings.poll());
        Context {
            client,
            settings,
            watched: Watched::default(),
            written: Written::default(),
            gangs: Gangs::default(),
            polls,
            telemetry: Telemetry::default(),
            recorder,
            memos: Mutex::default(),
        }
    }

    /// What is known of the job with this UID, to be read and changed.
    pub(crate) fn memo<T>(&self, uid: &str, with: impl FnOnce(&mut Memo) -> T) -> T {
        let mut all = self.memos.lock().unwrap_or_else(PoisonError::into_inner);
        with(all.entry(uid.to_owned()).or_default())
    }

    /// Forgets the jobs that are not in `living`.
    pub(crate) fn retain(&self, living: &dyn Fn(&str) -> bool) {
        self.watched.retain(living);
        self.written.retain(living);
        self.polls.retain(living);
        self.telemetry.retain(living);
        self.memos.lock().unwrap_or_else(PoisonError::into_inner).retain(|uid, _| living(uid));
    }
}
