//! Tests random mutations of valid programs. The verifier accepts exactly the programs that a naive, independently
//! written executor can execute.

use proptest::prelude::*;
use stagecoach_pipeline::{Action, Limits, Programs, SCHEDULES, lower, verify};

use crate::reference_executor::ReferenceExecutor;

#[derive(Clone, Debug)]
struct Mutation {
    kind: usize,
    rank: prop::sample::Index,
    first: prop::sample::Index,
    second: prop::sample::Index,
}

fn mutate(programs: &mut Programs, mutation: &Mutation) {
    let ranks = programs.ranks.len();
    let actions = &mut programs.ranks[mutation.rank.index(ranks)];
    if actions.is_empty() {
        return;
    }
    let last = actions.len() - 1;
    let (first, second) = (mutation.first.index(last + 1), mutation.second.index(last + 1));
    let text = actions[first].to_string();
    let replace = |from: &str, to: &str| text.replacen(from, to, 1).parse().unwrap_or(actions[first]);
    match mutation.kind {
        0 => actions.swap(first, second),
        1 => actions.swap(first, (first + 1).min(last)),
        2 => drop(actions.remove(first)),
        3 => actions.insert(second, actions[first]),
        4 => {
            let kind = actions[first].computation_type();
            actions[first] = text
                .split_once(kind)
                .and_then(|(chunk, _)| {
                    format!("{chunk}{kind}{}", mutation.second.index(programs.microbatches + 1)).parse().ok()
                })
                .unwrap_or(actions[first]);
        }
        5 => actions[first] = replace("F", "B"),
        6 => actions[first] = replace("B", "I"),
        7 => {
            // a full backward becomes I and a later W, which is often valid
            if let Action::FullBackward(item) = actions[first] {
                actions[first] = Action::BackwardInput(item);
                actions.insert((first + 1 + mutation.second.index(4)).min(actions.len()), Action::BackwardWeight(item));
            }
        }
        8 => {
            let action = actions.remove(first);
            actions.insert(second.min(actions.len()), action);
        }
        9 => {
            // an action moves a few places towards the beginning, which is often valid for receives
            let action = actions.remove(first);
            actions.insert(first.saturating_sub(1 + mutation.second.index(3)), action);
        }
        _ => {
            let action = actions.remove(first);
            let other = &mut programs.ranks[mutation.second.index(ranks)];
            other.insert(mutation.first.index(other.len() + 1), action);
        }
    }
}

fn base() -> impl Strategy<Value = Programs> {
    let chosen = (prop::sample::select(SCHEDULES), 1..5usize, 1..6usize, any::<bool>(), any::<bool>());
    chosen.prop_map(|(schedule, ranks, microbatches, tied, replicated)| {
        let schedule = schedule.schedule(ranks, 1 + microbatches % 2, microbatches);
        let programs = lower(&schedule, tied).unwrap();
        if replicated { programs.replicate() } else { programs }
    })
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let index = any::<prop::sample::Index>;
    let mutation = (0..11usize, index(), index(), index()).prop_map(|(kind, rank, first, second)| Mutation {
        kind,
        rank,
        first,
        second,
    });
    prop::collection::vec(mutation, 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_verifier_agrees_with_the_reference_executor(mut programs in base(), mutations in mutations(), sends_in_flight in 1..4usize) {
        for mutation in &mutations {
            mutate(&mut programs, mutation);
        }
        let verified = verify(&programs, &Limits { sends_in_flight, max_in_flight: None });
        let executed = ReferenceExecutor::run(&programs, sends_in_flight);
        prop_assert_eq!(
            verified.is_ok(), executed.is_ok(), "{:?} against {:?}\n{}", verified, executed, programs.to_text()
        );
    }

    #[test]
    fn arbitrary_text_is_parsed_or_rejected(text in "[0-2FBIWSENDRCV_,: \n]{0,60}") {
        let _ = stagecoach_pipeline::from_csv(&text, 2);
        let _ = Programs::from_text(&text);
    }
}
