//! Tests the split of chunks into parts: in programs, costs and partitions.

use stagecoach_pipeline::{
    Costs, Limits, Partition, Programs, SCHEDULES, forward_only_programs, lower, one_f_one_b, simulate, verify,
    verify_evaluation,
};

#[test]
fn chunks_in_parts_do_the_same_work() {
    let sizes = [(1, 3), (2, 4), (3, 5)].into_iter();
    let schedules =
        sizes.flat_map(|(ranks, microbatches)| SCHEDULES.iter().map(move |s| s.schedule(ranks, 2, microbatches)));
    for (schedule, tied) in schedules.flat_map(|schedule| [(schedule.clone(), false), (schedule, true)]) {
        let whole = lower(&schedule, tied).unwrap();
        let chunks = whole.placement.chunks();
        assert_eq!(whole.split(&vec![1; chunks]), whole);
        assert_eq!((whole.in_flight(), whole.split(&[])), (schedule.in_flight(), whole.clone()));
        let parts: Vec<usize> = (0..chunks).map(|chunk| 1 + (chunk + 1) % 3).collect();
        let split = whole.split(&parts);
        assert_eq!(split.placement.chunks(), parts.iter().sum::<usize>());
        let limits = Limits { max_in_flight: Some(split.in_flight()), ..Limits::default() };
        let replica = split.clone().replicate();
        verify(&split, &limits).unwrap();
        verify(&replica, &limits).unwrap();
        verify_evaluation(&forward_only_programs(&split.placement, 4), &Limits::default()).unwrap();
        // a split does not make the step longer if each part takes its share of the chunk's time
        let mut costs = Costs::uniform(split.placement.chunks());
        let of_part = parts.iter().flat_map(|&count| std::iter::repeat_n(1.0 / count as f64, count));
        for (chunk, share) in costs.chunks.iter_mut().zip(of_part) {
            chunk.forward_seconds *= share;
            chunk.backward_input_seconds *= share;
            chunk.backward_weight_seconds *= share;
        }
        let back = costs.merge(&parts).chunks;
        assert!(back.iter().all(|chunk| (chunk.forward_seconds - 1.0).abs() < 1e-9 && back.len() == chunks));
        let seconds = [simulate(&whole, &Costs::uniform(chunks)), simulate(&split, &costs)].map(|step| step.makespan);
        assert!((seconds[0] - seconds[1]).abs() < 1e-9, "{}: {seconds:?}", schedule.name);
    }
}

#[test]
fn a_chunk_in_parts_hides_its_exchange() {
    let whole = lower(&one_f_one_b(1, 1), false).unwrap();
    let text = |programs: &Programs| programs.ranks[0].iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(
        text(&whole.split(&[2]).replicate()),
        "0F0 1F0 1B0 1REDUCE 0B0 0REDUCE EXCHANGE UPDATE 0GATHER 1GATHER SNAPSHOT"
    );
    // the step has nine seconds of computation and four seconds of exchange
    let seconds = |parts: usize| {
        let mut costs = Costs::uniform(parts);
        let share = 1.0 / parts as f64;
        for chunk in &mut costs.chunks {
            (chunk.forward_seconds, chunk.backward_input_seconds) = (3.0 * share, 6.0 * share);
            chunk.backward_weight_seconds = 0.0;
        }
        (costs.reduce_seconds, costs.gather_seconds) = (vec![2.0 * share; parts], vec![2.0 * share; parts]);
        simulate(&whole.split(&[parts]).replicate(), &costs).makespan
    };
    assert_eq!([seconds(1), seconds(2), seconds(8)], [13.0, 11.0, 9.5]);
}

#[test]
fn the_parts_of_a_partition_have_its_layers() {
    let partition = Partition { layers: vec![5, 0, 3] };
    let split = partition.split(&[3, 1, 2]);
    assert_eq!(split.layers, [1, 2, 2, 0, 1, 2]);
    assert_eq!((split.merge(&[3, 1, 2]), split.merge(&[])), (partition.clone(), split.clone()));
    assert_eq!(partition.split(&[]), partition);
}
