//! Tests of suspended jobs, and of jobs that wait in a queue.

use stagecoach_api::job::JobPhase;
use stagecoach_lifecycle::*;

use super::{NOW, exited, ready, running, start};

#[test]
fn a_suspended_job_stops_and_resumes() {
    let mut observed = running((0..3).map(ready).collect());
    observed.desired.suspend = true;
    observed.state = decide(&observed, NOW).state;
    observed.instances = (0..3).map(|rank| exited(rank, 143, 1001)).collect();
    let decision = decide(&observed, NOW);
    assert_eq!((&decision.state.attempt_phase, decision.job_phase), (&AttemptPhase::Idle, JobPhase::Suspended));
    assert_eq!(decision.state.started_at, None);

    observed.state = decision.state;
    observed.instances.clear();
    assert_eq!(decide(&observed, NOW).actions, []);
    observed.desired.suspend = false;
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.attempt.number, decision.state.started_at), (2, Some(NOW)));
    assert_eq!(decision.actions, [start(2, 3)]);
}

#[test]
fn a_job_runs_only_while_its_queue_admits_it() {
    let mut observed = running(vec![]);
    observed.state = JobState::default();
    observed.desired.admission = Admission::Waiting;
    let decision = decide(&observed, NOW);
    assert_eq!(
        (decision.state, decision.actions, decision.job_phase, decision.wake_at),
        (JobState::default(), vec![], JobPhase::Pending, None)
    );

    observed.desired.admission = Admission::Admitted(5);
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.attempt.admission, decision.state.started_at), (5, Some(NOW)));
    assert_eq!(decision.actions, [start(1, 3)]);

    // an eviction is a drain, after which the job waits again; the time in the queue does not count
    observed.state = decision.state;
    observed.instances = (0..3).map(ready).collect();
    observed.desired.admission = Admission::Waiting;
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.attempt_phase, AttemptPhase::Draining);
    observed.state = decision.state;
    observed.instances = (0..3).map(|rank| exited(rank, 143, 1001)).collect();
    let decision = decide(&observed, NOW);
    assert_eq!((decision.state.attempt_phase.clone(), decision.job_phase), (AttemptPhase::Idle, JobPhase::Pending));
    assert_eq!((decision.state.started_at, decision.state.budget), (None, RestartBudget::default()));
}

#[test]
fn an_attempt_of_another_admission_is_drained() {
    let mut observed = running((0..3).map(ready).collect());
    for (ready_in, desired) in
        [(5, Admission::Admitted(6)), (5, Admission::NotRequired), (0, Admission::Admitted(6)), (5, Admission::Waiting)]
    {
        observed.state.attempt.admission = ready_in;
        observed.desired.admission = desired;
        assert_eq!(decide(&observed, NOW).state.attempt_phase, AttemptPhase::Draining, "{desired:?}");
    }
    observed.desired.admission = Admission::Admitted(5);
    assert_eq!(decide(&observed, NOW).state, observed.state);

    // an admission in the middle of a drain starts the next attempt when all stages have exited
    observed.state.attempt_phase = AttemptPhase::Draining;
    observed.desired.admission = Admission::Admitted(6);
    observed.instances = (0..3).map(|rank| exited(rank, 143, 1001)).collect();
    let attempt = decide(&observed, NOW).state.attempt;
    assert_eq!((attempt.number, attempt.admission), (2, 6));
}

#[test]
fn a_job_suspended_from_the_start_never_starts() {
    let mut observed = running(vec![]);
    observed.state = JobState::default();
    observed.desired.suspend = true;
    let decision = decide(&observed, NOW);
    assert_eq!(
        (decision.state, decision.actions, decision.job_phase),
        (JobState::default(), vec![], JobPhase::Suspended)
    );
}
