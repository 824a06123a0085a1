//! What the stages say to each other through the coordinator, in order.

use stagecoach_group::{GroupError, Outcome, Rules, StepVote};

use crate::support::{formed, leave, on_all, timing};

const LAYOUTS: u32 = 1;
const OTHER: u32 = 2;

#[test]
fn votes_messages_and_gathers_keep_their_order_over_many_steps() {
    const WORLD: usize = 4;
    const STEPS: u64 = 300;
    let rules = Rules { clip_norm: Some(1.0), ..Rules::default() };
    let (coordinator, stages) = formed(WORLD, timing(), rules);
    let seen = on_all(&stages, |rank, member| {
        let tell = |step: u64| {
            if rank == 0 {
                member.tell(LAYOUTS, step.to_le_bytes().to_vec()).unwrap();
                member.tell(OTHER, vec![7]).unwrap();
            }
        };
        tell(1);
        let mut verdicts = Vec::new();
        for step in 1..=STEPS {
            // A step ahead.
            tell(step + 1);
            assert_eq!(member.told(LAYOUTS).unwrap(), step.to_le_bytes());
            let vote = StepVote {
                step,
                loss: (rank == WORLD - 1).then_some(step as f32),
                squared_norms: vec![(rank as u32, step as f64)],
                stop: step == STEPS && rank == 2,
                save: step == 33 && rank == 1,
                finite: true,
                measures: vec![rank as f64, step as f64],
                ..StepVote::default()
            };
            verdicts.push(member.vote(vote).unwrap());
            if step % 10 == 0 {
                let parts = member.gather(OTHER, format!("{step} of {rank}").into_bytes()).unwrap();
                let expected: Vec<_> = (0..WORLD).map(|rank| format!("{step} of {rank}").into_bytes()).collect();
                assert_eq!(parts, expected);
            }
        }
        (0..=STEPS).for_each(|_| assert_eq!(member.told(OTHER).unwrap(), [7]));
        verdicts
    });
    for (step, verdict) in (1..=STEPS).zip(&seen[0]) {
        let norm = (WORLD as f64 * step as f64).sqrt();
        assert_eq!((verdict.step, verdict.loss, verdict.norm), (step, step as f32, norm));
        assert_eq!(verdict.outcome, Outcome::Apply { clip: (1.0 / (norm + 1e-6)).min(1.0) });
        assert_eq!((verdict.save, verdict.stop), (step == 33, step == STEPS));
        let measures: Vec<_> = (0..WORLD).map(|rank| vec![rank as f64, step as f64]).collect();
        assert_eq!(verdict.measures, measures);
    }
    for others in &seen[1..] {
        for (theirs, first) in others.iter().zip(&seen[0]) {
            assert!(theirs.measures.is_empty());
            assert_eq!((theirs.step, &theirs.outcome, theirs.stop), (first.step, &first.outcome, first.stop));
            assert_eq!(theirs.norm.to_bits(), first.norm.to_bits());
        }
    }
    assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn only_stage_zero_tells_and_frames_are_bounded() {
    let (coordinator, stages) = formed(2, timing(), Rules::default());
    let told = stages[1].member.tell(LAYOUTS, vec![1]).unwrap_err();
    assert!(matches!(told, GroupError::NotStageZero { rank: 1 }), "{told}");
    let large = stages[1].member.gather(OTHER, vec![0; 65 << 20]).unwrap_err();
    assert!(large.to_string().contains("at most 67108864"), "{large}");
    // Neither harmed the group.
    on_all(&stages, |_, member| member.gather(OTHER, vec![0; 1 << 20]).unwrap());
    assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
    assert_eq!(coordinator.failure(), None);
}

#[test]
fn parts_that_add_up_to_too_much_end_the_group_with_a_sentence() {
    let (_coordinator, stages) = formed(2, timing(), Rules::default());
    on_all(&stages, |_, member| {
        let error = member.gather(OTHER, vec![0; 40 << 20]).unwrap_err();
        assert!(error.to_string().contains("too large for the control connection"), "{error}");
    });
}

#[test]
fn steps_that_are_not_finite_are_skipped_until_there_are_too_many() {
    let rules = Rules { max_skips_in_a_row: 3, ..Rules::default() };
    let (_coordinator, stages) = formed(2, timing(), rules);
    let losses = [f32::NAN, f32::INFINITY, 1.0, f32::NAN, f32::NAN, f32::NAN];
    let outcomes = on_all(&stages, |rank, member| {
        let mut skips_in_a_row = 0;
        let vote = |(step, &loss)| {
            let loss = (rank == 1).then_some(loss);
            let vote = StepVote { step: step as u64, loss, skips_in_a_row, finite: true, ..StepVote::default() };
            let verdict = member.vote(vote).unwrap();
            skips_in_a_row = verdict.skips_in_a_row;
            verdict.outcome
        };
        losses.iter().enumerate().map(vote).collect::<Vec<_>>()
    });
    assert_eq!(outcomes[0], outcomes[1]);
    let (last, before) = outcomes[0].split_last().unwrap();
    let skip = || Outcome::Skip;
    assert_eq!(before, [skip(), skip(), Outcome::Apply { clip: 1.0 }, skip(), skip()]);
    let Outcome::Abort { reason } = last else { panic!("{last:?}") };
    assert!(reason.contains("the last of 3 in a row"), "{reason}");
}
