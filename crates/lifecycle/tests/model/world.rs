//! The world's state: what the API server holds, what runs on the nodes, what lies on the volume, and what the operator
//! has in mind.

use stagecoach_lifecycle::*;

use crate::properties::Broken;

/// The present, always: when time passes, everything else becomes older. So states that differ only by when they
/// happened are one.
pub(crate) const NOW: Time = Time::from_seconds(10_000);
/// Seconds after which nothing is told apart by its age: longer than every timeout.
pub(crate) const HORIZON: u64 = 40;

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) job: Job,
    /// By attempt and stage: one a name, as the API server has it.
    pub(crate) pods: Vec<Pod>,
    pub(crate) volume: Volume,
    pub(crate) operator: Operator,
    /// What a cache that lags behind will show to one more read.
    pub(crate) lagging: Option<Lagging>,
    /// Faults that may still happen.
    pub(crate) left: Faults,
    pub(crate) history: History,
}

/// The job object. Its resourceVersion is `Operator::fresh`: all that matters is whether someone else wrote since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) desired: Desired,
    pub(crate) recorded: State,
}

/// A pod's name within the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) attempt: u64,
    pub(crate) stage: u32,
}

/// A pod: the object, and the process that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pod {
    pub(crate) name: Name,
    /// Stages of its attempt.
    pub(crate) stages: u32,
    pub(crate) process: Process,
    /// Since when the API shows that.
    pub(crate) at: Time,
    /// Whether this stage 0 took a fence.
    pub(crate) fenced: bool,
    /// The object's deletion was asked for; the process is told by its node, unless that is cut off.
    pub(crate) leaving: Option<Time>,
    /// Its node is cut off: the API shows this for ever, and the process does what it likes.
    pub(crate) cut: Option<Process>,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    Pending,
    Starting,
    Ready,
    Ended(i32),
}

/// The shared volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Volume {
    /// The attempt whose stage 0 took the newest fence.
    pub(crate) holder: u64,
    /// Steps in the newest checkpoint.
    pub(crate) checkpoint: u64,
}

/// The operator's memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operator {
    /// Something changed that it has not looked at.
    pub(crate) news: bool,
    /// When to look again anyway.
    pub(crate) wake: Option<Time>,
    /// Writes that it is about to do, the next one last.
    pub(crate) plan: Vec<Write>,
    /// Whether the job is as it was when the plan was made.
    pub(crate) fresh: bool,
}

/// A write to the API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    Record(Box<Record>),
    Create {
        name: Name,
        stages: u32,
    },
    /// By UID: never a later pod of that name.
    Delete(Name),
}

/// What is written to the job's status, and what it was decided from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) raised: bool,
    pub(crate) refilled: bool,
    pub(crate) counted: bool,
}

/// What an old read shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lagging {
    Job(Box<Job>),
    Pods(Vec<Pod>),
}

/// How often each fault may happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// The operator dies between two writes and forgets everything.
    pub(crate) crashes: u8,
    /// The operator reads a version of the job that was overwritten since.
    pub(crate) lags: u8,
    /// A process fails, loses a peer, is killed, or is asked to leave by someone else; or pods are slower than a timeout.
    pub(crate) failures: u8,
    /// A node is cut off.
    pub(crate) cuts: u8,
    /// The user suspends, resumes or scales.
    pub(crate) changes: u8,
    /// The job's status is lost.
    pub(crate) losses: u8,
}

/// What the properties need to know of the past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// The highest number that was recorded.
    pub(crate) highest: u64,
    /// The highest that was recorded before the status was lost.
    pub(crate) forgotten: u64,
    /// The attempt that was last recorded as created.
    pub(crate) created: u64,
    /// Restarts that counted, since a checkpoint was committed.
    pub(crate) counted: u32,
    /// A promise that was broken; nothing happens after that.
    pub(crate) broken: Option<Broken>,
}

impl World {
    pub(crate) fn pod(&self, name: Name) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.name == name)
    }

    /// For a change to a pod that exists.
    pub(crate) fn change(&mut self, name: Name, change: impl FnOnce(&mut Pod)) {
        let pod = self.pods.iter_mut().find(|pod| pod.name == name).unwrap();
        let before = pod.member();
        change(pod);
        let seen = pod.member() != before;
        self.operator.news |= seen;
    }

    pub(crate) fn of(&self, attempt: u64) -> impl Iterator<Item = &Pod> + Clone {
        self.pods.iter().filter(move |pod| pod.name.attempt == attempt)
    }

    pub(crate) fn break_promise(&mut self, promise: Broken) {
        self.history.broken.get_or_insert(promise);
    }

    /// Makes one of states that nobody can tell apart.
    pub(crate) fn merge(&mut self) {
        let number = self.job.recorded.attempt.number;
        let oldest = Time(NOW.0 - HORIZON * 1000);
        for pod in self.pods.iter_mut().filter(|pod| !pod.is_alive()) {
            pod.fenced = false;
            if pod.is_reachable() {
                pod.leaving = pod.leaving.map(|_| oldest);
            }
        }
        if !self.of(self.volume.holder).any(Pod::is_alive) {
            self.volume.holder = 0;
        }
        if self.history.created < number {
            self.history.created = 0;
        }
        // How an older attempt ended, and whether its objects are gone, matters where someone takes it for the newest.
        if self.lagging.is_none() && self.left.losses == 0 {
            let dead = |attempt| self.of(attempt).all(|pod| !pod.is_alive() && pod.is_reachable());
            let dead: Vec<_> = (1..number).filter(|attempt| dead(*attempt)).collect();
            self.pods.retain(|pod| !dead.contains(&pod.name.attempt) || pod.leaving.is_none());
            for pod in self.pods.iter_mut().filter(|pod| dead.contains(&pod.name.attempt)) {
                pod.process = Process::Ended(1);
                pod.at = oldest;
            }
        }
        if self.job.recorded.outcome().is_some() {
            let Faults { crashes, lags, .. } = self.left;
            self.left = Faults { crashes, lags, ..Faults::default() };
        }
    }

    /// Lets seconds pass: everything else becomes older by them.
    pub(crate) fn pass(&mut self, time: Time) {
        let age = |at: &mut Time| *at = Time(at.0.saturating_sub(time.0)).max(Time(NOW.0 - HORIZON * 1000));
        let age_pods = |pods: &mut Vec<Pod>| {
            for pod in pods {
                age(&mut pod.at);
                pod.leaving.as_mut().into_iter().for_each(age);
            }
        };
        let age_job = |job: &mut Job| {
            if let Doing::Running { not_before, .. } = &mut job.recorded.doing {
                age(not_before);
            }
            job.recorded = plain(job.recorded.clone());
        };
        age_pods(&mut self.pods);
        age_job(&mut self.job);
        match &mut self.lagging {
            Some(Lagging::Pods(pods)) => age_pods(pods),
            Some(Lagging::Job(job)) => age_job(job),
            None => {}
        }
    }
}

impl Pod {
    /// What the API shows of it.
    pub(crate) fn member(&self) -> Member {
        let (state, at) = match (self.cut.unwrap_or(self.process), self.leaving) {
            (Process::Ended(code), _) => (MemberState::Exited(Exit::with_code(code)), self.at),
            (_, Some(since)) => (MemberState::Terminating, since),
            (Process::Pending, None) => (MemberState::Pending, self.at),
            (Process::Starting, None) => (MemberState::Starting, self.at),
            (Process::Ready, None) => (MemberState::Ready, self.at),
        };
        Member { stage: self.name.stage, attempt: self.name.attempt, state, at }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.process, Process::Ended(_))
    }

    pub(crate) fn is_reachable(&self) -> bool {
        self.cut.is_none()
    }

    pub(crate) fn enter(&mut self, process: Process) {
        self.process = process;
        if self.is_reachable() {
            self.at = NOW;
        }
    }
}

/// A state without what no decision depends on, so that more states are one: counters, sentences, and times gone by.
pub(crate) fn plain(mut state: State) -> State {
    if let Doing::Running { not_before, .. } = &mut state.doing
        && *not_before <= NOW
    {
        *not_before = Time(0);
    }
    State {
        budget: Budget { spent: state.budget.spent, ..Budget::default() },
        failures: 0,
        best_step: None,
        last_failure: None,
        started: state.started.map(|_| Time(0)),
        ..state
    }
}
