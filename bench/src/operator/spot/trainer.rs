//! Simulates the trainer: computes how many steps a job finishes with its ready pods. The stages that train together
//! are a group. Times are seconds of the trace of spot capacity, which is replayed faster than real time.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::STAGES;

/// The time that one replica takes for a step. With n replicas, a step takes 1/n of this time.
pub(super) const STEP_SECONDS: f64 = 60.0;
/// The time from the readiness of an attempt's last pod to the first step.
const START_SECONDS: f64 = 60.0;
/// The pause of a group that continues with other members.
const REGROUP_SECONDS: f64 = 10.0;
/// The time between two checkpoints on the volume.
const CHECKPOINT_SECONDS: f64 = 300.0;
/// The time for which the pods of additional replicas must be ready before the group grows.
const WINDOW_SECONDS: f64 = 60.0;

/// The constants of this simulation, for the report.
pub(super) fn parameters() -> Value {
    json!({
        "stepSeconds": STEP_SECONDS, "startSeconds": START_SECONDS, "regroupSeconds": REGROUP_SECONDS,
        "checkpointSeconds": CHECKPOINT_SECONDS, "windowSeconds": WINDOW_SECONDS,
    })
}

/// A pod that is ready.
pub(super) struct ReadyPod {
    pub(super) uid: String,
    pub(super) stage: u32,
}

/// The rules by which the trainer uses the pods.
#[derive(Clone, Copy)]
pub(super) struct ReplicaPolicy {
    pub(super) min_replicas: u32,
    pub(super) max_replicas: u32,
    /// Whether the remaining members of a group keep their state after the group loses a pod. Otherwise, all members
    /// begin with the newest checkpoint.
    pub(super) keeps_survivors: bool,
}

impl ReplicaPolicy {
    /// Returns the policy of a job that trains with exactly `replicas` replicas or not at all.
    pub(super) const fn fixed(replicas: u32, keeps_survivors: bool) -> ReplicaPolicy {
        ReplicaPolicy { min_replicas: replicas, max_replicas: replicas, keeps_survivors }
    }
}

/// A trainer on the pods of a job.
pub(super) struct SimulatedTrainer {
    policy: ReplicaPolicy,
    now: f64,
    steps: f64,
    /// The UIDs of the members of the group.
    members: BTreeSet<String>,
    /// The number of members that the group has lost since it was formed; at least 1 if there is no group, because too
    /// few pods are ready.
    lost: usize,
    /// The time at which the group trains again.
    trains_at: f64,
    /// The time since which the ready pods are enough for more replicas; `None` while they are not.
    more_since: Option<f64>,
    /// The time at which the current checkpoint interval began, with a checkpoint or with a new group, and the number
    /// of steps in the newest checkpoint on the volume.
    saved: (f64, f64),
}

impl SimulatedTrainer {
    pub(super) fn new(policy: ReplicaPolicy) -> SimulatedTrainer {
        SimulatedTrainer {
            policy,
            now: 0.0,
            steps: 0.0,
            members: BTreeSet::new(),
            lost: 0,
            trains_at: 0.0,
            more_since: None,
            saved: (0.0, 0.0),
        }
    }

    pub(super) fn steps(&self) -> f64 {
        self.steps
    }

    /// Returns the number of replicas that train.
    pub(super) fn replicas(&self) -> u32 {
        if self.now < self.trains_at { 0 } else { self.members.len() as u32 / STAGES }
    }

    /// Trains until `now`, and then adapts the group to the ready pods.
    pub(super) fn observe(&mut self, now: f64, ready: &[ReadyPod]) {
        self.train(now);
        let lost = self.members.iter().filter(|member| ready.iter().all(|pod| pod.uid != **member)).count();
        let possible = possible_replicas(ready).min(self.policy.max_replicas);
        let group = self.members.len() as u32 / STAGES;
        if lost > 0 {
            self.lost += lost;
            self.members.retain(|member| ready.iter().any(|pod| pod.uid == *member));
            // The state of a member exists twice: on this member, and as a copy on another one. The loss of two members
            // may destroy both copies of a state. The simulation assumes this case, so the group needs the checkpoint.
            if self.lost > 1 || !self.policy.keeps_survivors {
                self.steps = self.saved.1;
            }
        }
        let is_whole = lost == 0 && group >= self.policy.min_replicas.max(1) && self.lost == 0;
        if possible < self.policy.min_replicas {
            self.trains_at = f64::INFINITY;
            // the remaining members belong to no group, so the next group must form even if no further pod is lost
            self.lost = self.lost.max(1);
            return;
        }
        if !is_whole {
            let keeps = self.policy.keeps_survivors && self.lost == 1 && !self.members.is_empty();
            return self.form(possible, ready, if keeps { REGROUP_SECONDS } else { START_SECONDS });
        }
        self.more_since = (possible > group).then(|| self.more_since.unwrap_or(now));
        if self.more_since.is_some_and(|since| now - since >= WINDOW_SECONDS) {
            self.form(possible, ready, REGROUP_SECONDS);
        }
    }

    fn train(&mut self, now: f64) {
        let trained = (now - self.trains_at.max(self.now)).max(0.0);
        self.steps += trained / STEP_SECONDS * f64::from(self.members.len() as u32 / STAGES);
        if trained > 0.0 && now - self.saved.0 >= CHECKPOINT_SECONDS {
            self.saved = (now, self.steps);
        }
        self.now = now;
    }

    /// Forms a group of `replicas` replicas, which trains after `pause` seconds.
    fn form(&mut self, replicas: u32, ready: &[ReadyPod], pause: f64) {
        self.members.clear();
        for stage in 0..STAGES {
            let of_stage = ready.iter().filter(|pod| pod.stage == stage).take(replicas as usize);
            self.members.extend(of_stage.map(|pod| pod.uid.clone()));
        }
        (self.lost, self.more_since, self.trains_at) = (0, None, self.now + pause);
        self.saved.0 = self.trains_at;
    }
}

/// Returns the number of complete replicas that the pods can form.
fn possible_replicas(ready: &[ReadyPod]) -> u32 {
    let ready_pods = |stage| ready.iter().filter(|pod| pod.stage == stage).count() as u32;
    (0..STAGES).map(ready_pods).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(uids: &[u32]) -> Vec<ReadyPod> {
        uids.iter().map(|uid| ReadyPod { uid: uid.to_string(), stage: uid % STAGES }).collect()
    }

    fn after(policy: ReplicaPolicy, looks: &[(f64, &[u32])]) -> (f64, u32) {
        let mut trainer = SimulatedTrainer::new(policy);
        looks.iter().for_each(|(now, ready)| trainer.observe(*now, &pods(ready)));
        (trainer.steps(), trainer.replicas())
    }

    #[test]
    fn a_trainer_uses_the_pods_as_its_policy_allows() {
        let elastic = ReplicaPolicy { min_replicas: 1, max_replicas: 2, keeps_survivors: true };
        let start = (0.0, [0, 1, 2, 3].as_slice());
        assert_eq!(after(elastic, &[start, (60.0, &[0, 1, 2, 3]), (120.0, &[0, 1, 2, 3])]), (2.0, 2));
        // one lost pod costs a pause and one replica
        assert_eq!(after(elastic, &[start, (120.0, &[0, 1, 2]), (190.0, &[0, 1, 2])]), (3.0, 1));
        // two lost pods cost all steps, because there is no checkpoint yet
        assert_eq!(after(elastic, &[start, (120.0, &[0, 1]), (180.0, &[0, 1]), (240.0, &[0, 1])]), (1.0, 1));
        // a further replica joins after the window
        let returned =
            [(0.0, [0, 1].as_slice()), (60.0, &[0, 1, 2, 3]), (120.0, &[0, 1, 2, 3]), (190.0, &[0, 1, 2, 3])];
        assert_eq!(after(elastic, &returned), (3.0, 2));

        let fixed = ReplicaPolicy { min_replicas: 2, ..elastic };
        let waits = [start, (120.0, &[0, 1, 2]), (500.0, &[0, 1, 2, 5]), (570.0, &[0, 1, 2, 5])];
        assert_eq!(after(fixed, &waits), (4.0, 2));
        let restarts = ReplicaPolicy { keeps_survivors: false, ..fixed };
        assert_eq!(
            after(restarts, &[start, (120.0, &[0, 1, 2]), (500.0, &[4, 5, 6, 7]), (620.0, &[4, 5, 6, 7])]),
            (2.0, 2)
        );
        let saves = [start, (360.0, &[0, 1, 2, 3]), (420.0, &[0, 1]), (500.0, &[4, 5, 6, 7])];
        assert_eq!(after(restarts, &saves).0, 10.0, "the job must resume from the checkpoint of second 360");
    }
}
