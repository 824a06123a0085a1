//! Tests the decision at the end of a step. The bits of the decision must not depend on which rank casts which vote, or
//! on the order of the votes.

use proptest::prelude::*;
use stagecoach_group::{AbortKind, BlockLosses, StepOutcome, StepRules, StepVote, Verdict};

const CLIP: StepRules = StepRules { clip_norm: Some(1.0), max_consecutive_skips: 9 };

/// Decides a step of a group of one replica.
fn decide_step(votes: &[StepVote], rules: &StepRules) -> Verdict {
    stagecoach_group::decide_step(votes, rules, &|group_rank| format!("stage {group_rank}"))
}

/// Returns the votes of `ranks` ranks: rank `owners[i]` votes for parameter `i`, and the last rank for the loss.
fn votes(squares: &[f64], owners: &[usize], ranks: usize, loss: f32) -> Vec<StepVote> {
    let mut votes = vec![StepVote { step: 5, all_finite: true, ..StepVote::default() }; ranks];
    for (index, (&square, &owner)) in squares.iter().zip(owners).enumerate() {
        votes[owner % ranks].squared_norms.push((index as u32, square));
    }
    votes[ranks - 1].losses = Some(one_block(loss));
    votes
}

/// Returns the losses of a step with one block and one target.
pub fn one_block(loss: f32) -> BlockLosses {
    BlockLosses { blocks: 1, target_count: 1, sums: vec![(0, loss.into())] }
}

/// Returns the parts of a verdict on which all ranks act, as bits.
fn bits(verdict: &Verdict) -> (u64, u32, Option<u64>, bool, bool) {
    let clip = match verdict.outcome {
        StepOutcome::Apply { clip } => Some(clip.to_bits()),
        _ => None,
    };
    (verdict.norm.to_bits(), verdict.loss.to_bits(), clip, verdict.save, verdict.stop)
}

fn reason(votes: &[StepVote]) -> String {
    let decided = decide_step(votes, &CLIP);
    assert!(decided.stop && !decided.save, "an aborted job stops and keeps its last good checkpoint");
    match decided.outcome {
        StepOutcome::Abort { kind: AbortKind::Mismatch, reason } => reason,
        other => format!("not aborted: {other:?}"),
    }
}

proptest! {
    /// Every partition of the parameters over any number of ranks, voted in any order, gives the same bits as one rank.
    #[test]
    fn the_norm_is_bit_identical_for_every_partition(
        squares in prop::collection::vec(prop_oneof![0.0..1e-12, 0.0..1.0, 0.0..1e12f64], 1..60),
        owners in prop::collection::vec(0usize..8, 60),
        ranks in 1usize..8,
        loss in 0f32..12.0,
        clip in prop_oneof![Just(None), (1e-3..1e7).prop_map(Some)],
        turn in 0usize..60,
    ) {
        let rules = StepRules { clip_norm: clip, ..CLIP };
        let whole = decide_step(&votes(&squares, &owners, 1, loss), &rules);
        let mut cut = votes(&squares, &owners, ranks, loss);
        for vote in &mut cut {
            let by = turn % vote.squared_norms.len().max(1);
            vote.squared_norms.rotate_left(by);
            vote.squared_norms.reverse();
        }
        prop_assert_eq!(bits(&decide_step(&cut, &rules)), bits(&whole));
        cut.rotate_left(turn % ranks);
        prop_assert_eq!(bits(&decide_step(&cut, &rules)), bits(&whole));
        // the norm is defined by a sum in the order of the names
        let mut sum = 0.0;
        squares.iter().for_each(|square| sum += square);
        prop_assert_eq!(whole.norm.to_bits(), f64::sqrt(sum).to_bits());
    }

    /// Every distribution of the gradient blocks over ranks gives the same bits as one rank with all blocks, and as a
    /// sum over the blocks in a binary tree.
    #[test]
    fn the_loss_is_bit_identical_for_every_sharing_of_blocks(
        log in 0usize..5,
        sums in prop::collection::vec(1e-3..1e6f64, 16),
        owners in prop::collection::vec(0usize..4, 16),
        target_count in 1u64..1 << 40,
    ) {
        fn tree(sums: &[f64]) -> f64 {
            match sums {
                [one] => *one,
                _ => tree(&sums[..sums.len() / 2]) + tree(&sums[sums.len() / 2..]),
            }
        }
        let sums = &sums[..1 << log];
        let decide = |owner: &dyn Fn(usize) -> usize| {
            let mut all = votes(&[1.0], &[0], 4, 1.0);
            all.iter_mut().for_each(|vote| vote.losses = None);
            for (block, &sum) in sums.iter().enumerate().rev() {
                let blocks = sums.len() as u32;
                let empty = || BlockLosses { blocks, target_count, sums: Vec::new() };
                all[owner(block)].losses.get_or_insert_with(empty).sums.push((block as u32, sum));
            }
            decide_step(&all, &CLIP).loss.to_bits()
        };
        let expected = (tree(sums) / target_count as f64) as f32;
        prop_assert_eq!(decide(&|_| 2), expected.to_bits());
        prop_assert_eq!(decide(&|block| owners[block]), expected.to_bits());
    }

    /// A clip factor is in (0, 1], and the clipped norm is at most the bound. The factor is exactly 1 if the norm is
    /// already below the bound.
    #[test]
    fn the_clip_factor_bounds_the_norm(exponent in -8.0..8f64, most in 1e-3..1e3f64) {
        let square = 10f64.powf(exponent);
        let rules = StepRules { clip_norm: Some(most), ..CLIP };
        let decided = decide_step(&votes(&[square], &[0], 1, 1.0), &rules);
        let StepOutcome::Apply { clip } = decided.outcome else { return Err(TestCaseError::fail("not applied")) };
        prop_assert!(clip > 0.0 && clip <= 1.0);
        prop_assert!(decided.norm * clip <= most);
        prop_assert_eq!(clip.to_bits() == 1f64.to_bits(), decided.norm + 1e-6 <= most);
    }

    /// One non-finite number on any rank skips the step on all ranks.
    #[test]
    fn one_non_finite_number_skips_the_step(
        bad in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY)],
        at in 0usize..12,
        skipped in 0u32..8,
    ) {
        let mut squares = [1.0; 10];
        let mut loss = 2.0;
        let mut finite = true;
        match at {
            0..10 => squares[at] = bad,
            10 => loss = bad as f32,
            _ => finite = false,
        }
        let mut all = votes(&squares, &[0, 1, 2, 0, 1, 2, 0, 1, 2, 0], 3, loss);
        all[1].all_finite = finite;
        all.iter_mut().for_each(|vote| vote.consecutive_skips = skipped);
        let decided = decide_step(&all, &CLIP);
        prop_assert_eq!((decided.outcome, decided.consecutive_skips), (StepOutcome::Skip, skipped + 1));
    }
}

#[test]
fn nine_skips_in_a_row_abort_and_a_good_step_resets_the_count() {
    let mut all = votes(&[1.0], &[0], 1, f32::NAN);
    (all[0].save_due, all[0].consecutive_skips) = (true, 7);
    assert!(decide_step(&all, &CLIP).save);
    all[0].consecutive_skips = 8;
    let last = decide_step(&all, &CLIP);
    let StepOutcome::Abort { kind: AbortKind::NonFinite, reason } = &last.outcome else { panic!("{last:?}") };
    assert!(reason.starts_with("step 5 is the last of 9 in a row whose loss or gradient was not finite"), "{reason}");
    assert!(last.stop && !last.save);
    let mut good = votes(&[1.0], &[0], 1, 1.0);
    good[0].consecutive_skips = 8;
    assert_eq!(decide_step(&good, &CLIP).consecutive_skips, 0);
}

#[test]
fn votes_that_contradict_each_other_abort() {
    let mut steps = votes(&[1.0, 1.0], &[0, 1], 2, 1.0);
    steps[1].step = 6;
    assert_eq!(reason(&steps), "the stages voted on different steps: stage 0 on step 5, stage 1 on step 6");

    let mut twice = votes(&[1.0, 1.0], &[0, 1], 2, 1.0);
    twice[1].squared_norms.push((0, 1.0));
    assert!(reason(&twice).contains("parameter 0 was voted twice, by stage 0 and stage 1"));

    let mut hole = votes(&[1.0, 1.0, 1.0], &[0, 1, 1], 2, 1.0);
    hole[1].squared_norms.remove(0);
    assert_eq!(reason(&hole), "no stage voted the norm of parameter 1");

    let mut heads = votes(&[1.0], &[0], 3, 1.0);
    heads[0].losses = Some(one_block(1.0));
    assert_eq!(reason(&heads), "the loss of block 0 of step 5 was voted twice, by stages 0 and 2");
    heads[0].losses = Some(BlockLosses { target_count: 2, ..one_block(1.0) });
    assert!(reason(&heads).contains("with 1 blocks and 2 targets, but stage 2 reports 1 blocks and 1 targets"));
    heads[0].losses = None;
    heads[2].losses = Some(BlockLosses { blocks: 4, target_count: 1, sums: vec![(3, 1.0), (0, 1.0), (1, 1.0)] });
    assert_eq!(reason(&heads), "the votes on step 5 have the losses of blocks [0, 1, 3], but the step has 4 blocks");
    heads.iter_mut().for_each(|vote| vote.losses = None);
    assert!(reason(&heads).contains("no stage reported the loss of step 5"));

    assert_eq!(reason(&[]), "no rank voted");
}

#[test]
fn one_vote_to_stop_or_save_decides_for_all() {
    let decide = |change: fn(&mut [StepVote])| {
        let mut all = votes(&[1.0], &[0], 3, 1.0);
        change(&mut all);
        let decided = decide_step(&all, &CLIP);
        (decided.stop, decided.save)
    };
    assert_eq!(decide(|_| {}), (false, false));
    assert_eq!(decide(|all| all[1].stop_requested = true), (true, false));
    assert_eq!(decide(|all| all[1].save_due = true), (false, true));
    // a due checkpoint waits while any rank is still writing the previous checkpoint
    assert_eq!(decide(|all| (all[1].save_due, all[2].save_in_progress) = (true, true)), (false, false));
    assert_eq!(decide(|all| all[2].save_in_progress = true), (false, false));
}

#[test]
fn without_clip_norm_nothing_is_clipped() {
    let free = StepRules { clip_norm: None, ..CLIP };
    assert_eq!(decide_step(&votes(&[1e30], &[0], 1, 1.0), &free).outcome, StepOutcome::Apply { clip: 1.0 });
}

#[test]
fn a_step_that_any_rank_gave_up_is_dropped_by_all() {
    let losses = Some(one_block(1.0));
    let finished = StepVote { step: 5, losses, save_due: true, consecutive_skips: 2, ..StepVote::default() };
    let given_up = StepVote { step: 5, consecutive_skips: 2, unfinished: true, ..StepVote::default() };
    for stop_requested in [true, false] {
        let votes = [finished.clone(), StepVote { stop_requested, ..given_up.clone() }, given_up.clone()];
        let verdict = decide_step(&votes, &StepRules::default());
        assert_eq!(verdict.outcome, StepOutcome::Discard);
        assert_eq!((verdict.stop, verdict.save, verdict.consecutive_skips), (stop_requested, false, 2));
    }
}
