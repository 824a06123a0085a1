//! Tests votes, broadcasts and all-gathers through the coordinator, and their order.

use stagecoach_group::{GroupError, StepOutcome, StepRules, StepVote};

use super::support::{formed_group, leave, on_all, timeouts};
use crate::verdict::one_block;

const LAYOUTS: u32 = 1;
const OTHER: u32 = 2;

#[test]
fn votes_broadcasts_and_gathers_keep_their_order_over_many_steps() {
    const WORLD_SIZE: usize = 4;
    const STEPS: u64 = 300;
    let rules = StepRules { clip_norm: Some(1.0), ..StepRules::default() };
    let (coordinator, stages) = formed_group(WORLD_SIZE, timeouts(), rules);
    let seen = on_all(&stages, |rank, member| {
        let broadcast = |step: u64| {
            if rank == 0 {
                member.broadcast(LAYOUTS, step.to_le_bytes().to_vec()).unwrap();
                member.broadcast(OTHER, vec![7]).unwrap();
            }
        };
        broadcast(1);
        let mut verdicts = Vec::new();
        for step in 1..=STEPS {
            // the leader broadcasts one step ahead
            broadcast(step + 1);
            assert_eq!(member.receive_broadcast(LAYOUTS).unwrap(), step.to_le_bytes());
            let vote = StepVote {
                step,
                losses: (rank == WORLD_SIZE - 1).then(|| one_block(step as f32)),
                squared_norms: vec![(rank as u32, step as f64)],
                stop_requested: step == STEPS && rank == 2,
                save_due: step == 33 && rank == 1,
                all_finite: true,
                measurements: vec![rank as f64, step as f64],
                ..StepVote::default()
            };
            verdicts.push(member.vote(vote).unwrap());
            if step % 10 == 0 {
                let parts = member.all_gather(OTHER, format!("{step} of {rank}").into_bytes()).unwrap();
                let expected: Vec<_> = (0..WORLD_SIZE).map(|rank| format!("{step} of {rank}").into_bytes()).collect();
                assert_eq!(parts, expected);
            }
        }
        (0..=STEPS).for_each(|_| assert_eq!(member.receive_broadcast(OTHER).unwrap(), [7]));
        verdicts
    });
    for (step, verdict) in (1..=STEPS).zip(&seen[0]) {
        let norm = (WORLD_SIZE as f64 * step as f64).sqrt();
        assert_eq!((verdict.step, verdict.loss, verdict.norm), (step, step as f32, norm));
        assert_eq!(verdict.outcome, StepOutcome::Apply { clip: (1.0 / (norm + 1e-6)).min(1.0) });
        assert_eq!((verdict.save, verdict.stop), (step == 33, step == STEPS));
        let measurements: Vec<_> = (0..WORLD_SIZE).map(|rank| vec![rank as f64, step as f64]).collect();
        assert_eq!(verdict.measurements, measurements);
    }
    for others in &seen[1..] {
        for (verdict, first) in others.iter().zip(&seen[0]) {
            assert!(verdict.measurements.is_empty());
            assert_eq!((verdict.step, &verdict.outcome, verdict.stop), (first.step, &first.outcome, first.stop));
            assert_eq!(verdict.norm.to_bits(), first.norm.to_bits());
        }
    }
    assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn only_the_leader_broadcasts_and_frames_are_bounded() {
    let (coordinator, stages) = formed_group(2, timeouts(), StepRules::default());
    let message = stages[1].member.broadcast(LAYOUTS, vec![1]).unwrap_err();
    assert!(matches!(message, GroupError::NotLeader { .. }), "{message}");
    assert_eq!(message.to_string(), "stage 1 tried to broadcast: only the leader, stage 0, may broadcast");
    let large = stages[1].member.all_gather(OTHER, vec![0; 65 << 20]).unwrap_err();
    assert!(large.to_string().contains("at most 67108864"), "{large}");
    // the group continues after both errors
    on_all(&stages, |_, member| member.all_gather(OTHER, vec![0; 1 << 20]).unwrap());
    assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn a_gather_that_exceeds_the_frame_limit_ends_the_group() {
    let (_coordinator, stages) = formed_group(2, timeouts(), StepRules::default());
    on_all(&stages, |_, member| {
        let error = member.all_gather(OTHER, vec![0; 40 << 20]).unwrap_err();
        assert!(error.to_string().contains("too large for the control connection"), "{error}");
    });
}
