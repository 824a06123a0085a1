//! One look at a job: its pods, listed live, and what stage 0 says of itself.

mod endings;
mod member;
mod poll;

use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use stagecoach_api::contract::StageStatus;
use stagecoach_api::job::TrainerType;
use stagecoach_lifecycle::{Member, MemberState, Observed, Policy, Seen, Time};

pub(crate) use endings::Endings;
pub(crate) use member::{Trouble, member, trouble};
pub(crate) use poll::{Polled, Polls};

use crate::build;
use crate::job::Job;

/// What was seen of a job at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The pods of the job that exist, and those that are known to have ended before they went.
    pub pods: Vec<Pod>,
    /// What stage 0 of the current attempt said last; none before it first said anything.
    pub polled: Option<Polled>,
}

/// A pod of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// As `lifecycle` sees it.
    pub member: Member,
    /// The object.
    pub object: Value,
    /// Whether it is known from the past alone.
    pub gone: bool,
}

impl Pod {
    /// None if `object` belongs to no attempt.
    pub(crate) fn new(object: Value) -> Option<Pod> {
        member(&object).map(|member| Pod { member, object, gone: false })
    }

    /// `metadata.name`
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// `metadata.uid`
    pub(crate) fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

impl Look {
    /// The pods of an attempt.
    pub(crate) fn of(&self, attempt: u64) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(move |pod| pod.member.attempt == attempt)
    }

    /// Looks at `job`: lists its pods, and asks stage 0 if that is due.
    ///
    /// # Errors
    /// The API server's.
    pub(crate) async fn at(
        job: &Job,
        pods: &Api<DynamicObject>,
        endings: &Endings,
        polls: &Polls,
    ) -> kube::Result<Look> {
        // no resourceVersion: the answer is what is, not what a cache remembers
        let listed = pods.list(&ListParams::default().labels(&build::pod_query(&job.owner))).await?;
        let mut pods: Vec<Pod> = listed.items.iter().filter_map(|pod| Pod::new(to_value(pod))).collect();
        endings.complete(&job.owner.uid, job.state.attempt.number, &mut pods);
        let mut look = Look { pods, polled: None };
        if let Some(stage_0) = look.stage_0(job) {
            look.polled = polls.ask(&job.owner.uid, stage_0).await;
        }
        Ok(look)
    }

    /// The pod that serves `/status`, if its process may be there.
    fn stage_0(&self, job: &Job) -> Option<&Pod> {
        let built_in = job.job.spec.trainer.kind == TrainerType::BuiltIn;
        let running = |pod: &&Pod| {
            let state = &pod.member.state;
            pod.member.stage == 0
                && matches!(state, MemberState::Starting | MemberState::Ready | MemberState::Terminating)
        };
        self.of(job.state.attempt.number).find(running).filter(|_| built_in)
    }

    /// The same as `lifecycle` wants it.
    pub(crate) fn observed(&self, job: &Job) -> Observed {
        let members = self.pods.iter().map(|pod| pod.member.clone()).collect();
        let state = job.state.clone();
        Observed { desired: job.desired(), policy: Policy::for_pods(&job.job.spec), state, members, seen: self.seen() }
    }

    fn seen(&self) -> Seen {
        let Some(polled) = &self.polled else { return Seen::default() };
        let StageStatus { checkpoint, progress, .. } = &polled.status;
        Seen {
            checkpoint: checkpoint.as_ref().map(|checkpoint| checkpoint.step),
            step: Some(progress.step).filter(|step| *step > 0),
            prepared: Some(polled.changed).filter(|_| polled.is_preparing()),
            // who does not answer may be cut off from the operator alone: its own group watches it
            progressed: Some(polled.changed).filter(|_| polled.is_training() && polled.answered),
        }
    }
}

/// The object as plain JSON.
pub(crate) fn to_value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// The present, as `lifecycle` counts it.
pub(crate) fn now() -> Time {
    Time(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default())
}
