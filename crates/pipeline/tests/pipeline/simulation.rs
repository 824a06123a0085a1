//! Tests the simulator's times against sums that were computed by hand.

use stagecoach_pipeline::{
    ActionSpan, ChunkCosts, Costs, ModelCost, ModuleCost, Partition, Placement, Programs, gpipe,
    interleaved_one_f_one_b, interleaved_zero_bubble, lower, one_f_one_b, simulate,
};

fn programs(placement: Placement, microbatches: usize, ranks: &[&str]) -> Programs {
    let actions = |text: &&str| text.split(' ').map(|action| action.parse().unwrap()).collect();
    Programs { placement, microbatches, ranks: ranks.iter().map(actions).collect() }
}

fn times(spans: &[ActionSpan]) -> Vec<(String, f64, f64)> {
    spans.iter().map(|span| (span.action.to_string(), span.start, span.end)).collect()
}

fn expected(spans: &[(&str, f64, f64)]) -> Vec<(String, f64, f64)> {
    spans.iter().map(|(action, start, end)| (action.to_string(), *start, *end)).collect()
}

#[test]
fn messages_barriers_and_updates_take_their_time() {
    let mut costs = Costs { link_seconds: 0.25, exchange_seconds: 0.5, update_seconds: 2.0, ..Costs::uniform(2) };
    costs.chunks[1].forward_seconds = 3.0;
    let timeline = simulate(&lower(&gpipe(2, 1), true).unwrap(), &costs);
    assert_eq!(
        times(&timeline.spans[0]),
        expected(&[
            ("0F0", 0.0, 1.0),
            ("0SEND_F0", 1.0, 1.25),
            ("0RECV_B0", 5.25, 5.5),
            ("0B0", 5.5, 6.5),
            ("REDUCE_TIED", 6.5, 6.75),
            ("EXCHANGE", 6.75, 7.25),
            ("UPDATE", 7.25, 9.25),
            ("SNAPSHOT", 9.25, 9.25),
        ])
    );
    assert_eq!(
        times(&timeline.spans[1])[..4],
        expected(&[("1RECV_F0", 1.0, 1.25), ("1F0", 1.25, 4.25), ("1B0", 4.25, 5.25), ("1SEND_B0", 5.25, 5.5)])
    );
    assert_eq!(timeline.makespan, 9.25);
    assert_eq!(timeline.bubble, [1.0 - 4.0 / 9.25, 1.0 - 6.0 / 9.25]);
}

#[test]
fn messages_of_an_edge_queue_and_a_full_edge_blocks_the_sender() {
    let ranks = ["0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2", "1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2"];
    let run = |sends_in_flight, slow| {
        let mut costs = Costs { sends_in_flight, ..Costs::uniform(2) };
        costs.chunks[1].forward_seconds = slow;
        let timeline = simulate(&programs(Placement::linear(2), 3, &ranks), &costs);
        let ends = |rank: usize, kind: &str| -> Vec<f64> {
            timeline.spans[rank]
                .iter()
                .filter(|span| span.action.computation_type() == kind)
                .map(|span| span.end)
                .collect()
        };
        (ends(0, "F"), ends(1, "F"))
    };
    // the link is the bottleneck: the receives are posted at once, but messages leave the link only every 4 seconds
    let ahead = programs(Placement::linear(2), 3, &[ranks[0], "1RECV_F0 1RECV_F1 1RECV_F2 1F0 1F1 1F2"]);
    let timeline = simulate(&ahead, &Costs { link_seconds: 4.0, ..Costs::uniform(2) });
    assert_eq!(timeline.spans[1][3..].iter().map(|span| span.start).collect::<Vec<_>>(), [5.0, 9.0, 13.0]);
    // The receiver is slow and posts each receive late. A large limit lets the sender run ahead. A limit of one message
    // blocks the sender.
    assert_eq!(run(9, 10.0), (vec![1.0, 2.0, 3.0], vec![11.0, 21.0, 31.0]));
    let one =
        simulate(&programs(Placement::linear(2), 3, &["0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F0", ranks[1]]), &{
            let mut costs = Costs { sends_in_flight: 1, ..Costs::uniform(2) };
            costs.chunks[1].forward_seconds = 10.0;
            costs
        });
    // the third message waits until the second receive is posted, at 11 s
    assert_eq!(one.spans[0].last().map(|span| span.end), Some(12.0));
}

#[test]
fn splitting_the_backward_lets_the_gradient_leave_earlier() {
    let whole = programs(Placement::linear(2), 1, &["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"]);
    let split = programs(Placement::linear(2), 1, &["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1I0 1SEND_B0 1W0"]);
    let run = |programs| simulate(&programs, &Costs::uniform(2)).makespan;
    assert_eq!((run(whole), run(split)), (4.0, 3.5));
}

#[test]
fn the_slowest_stage_sets_the_pace_and_deadlocked_programs_stop_at_the_blocked_action() {
    let mut costs = Costs::uniform(3);
    costs.chunks[1] = ChunkCosts {
        forward_seconds: 2.0,
        backward_input_seconds: 1.0,
        backward_weight_seconds: 1.0,
        ..costs.chunks[1]
    };
    let timeline = simulate(&lower(&one_f_one_b(3, 16), false).unwrap(), &costs);
    assert!(timeline.makespan >= 64.0 && timeline.bubble[1] < timeline.bubble[0]);
    let deadlocked = programs(Placement::linear(2), 1, &["0F0 0RECV_B0 0B0", "1RECV_F0 1F0"]);
    let timeline = simulate(&deadlocked, &Costs::uniform(2));
    assert_eq!(timeline.spans.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(timeline.makespan, 1.0);
}

#[test]
fn costs_of_a_partitioned_model() {
    let module = |name: &str, work: f64, bytes: u64| ModuleCost {
        name: name.to_owned(),
        forward: work,
        backward_input: work,
        backward_weight: work / 2.0,
        parameter_bytes: 100 * bytes,
        copied_bytes: 0,
        activation_bytes: bytes,
        weight_gradient_bytes: 2 * bytes,
        temporary_bytes: 7 * bytes,
    };
    let model = ModelCost {
        embedding: module("embedding", 0.0, 1),
        layers: (0..3).map(|_| module("layer", 10.0, 2)).collect(),
        head: module("head", 40.0, 3),
        boundary_bytes: 50,
        ranks: Vec::new(),
    };
    let costs = Costs::estimate(&model, &Partition { layers: vec![2, 1, 0] }, 10.0, 100.0);
    let chunk = |forward_seconds, activation_bytes, weight_gradient_bytes, static_bytes, temporary_bytes| ChunkCosts {
        forward_seconds,
        backward_input_seconds: forward_seconds,
        backward_weight_seconds: forward_seconds / 2.0,
        activation_bytes,
        weight_gradient_bytes,
        static_bytes,
        temporary_bytes,
    };
    assert_eq!(costs.chunks, [chunk(2.0, 5, 10, 500, 7 + 14), chunk(1.0, 2, 4, 200, 14), chunk(4.0, 3, 6, 300, 21)]);
    assert_eq!(costs.link_seconds, 0.5);
    let timeline = simulate(&lower(&one_f_one_b(3, 8), false).unwrap(), &costs);
    assert_eq!(timeline.peak_bytes, [500 + 3 * 5 + 21, 200 + 2 * 2 + 14, 300 + 3 + 21]);
    // I frees the activations, and the rank keeps only the inputs of W: the last rank keeps the inputs of W of three
    // microbatches
    let timeline = simulate(&lower(&interleaved_zero_bubble(3, 1, 8), false).unwrap(), &costs);
    assert_eq!(timeline.peak_bytes[2], 300 + 3 * 6 + 21);
}

#[test]
fn what_replicas_exchange_is_hidden_behind_other_chunks() {
    let exchange = |reduce: [f64; 2], gather: [f64; 2]| Costs {
        reduce_seconds: reduce.into(),
        gather_seconds: gather.into(),
        ..Costs::uniform(2)
    };
    // one rank has both chunks, and chunk 1 finishes its backward a second before chunk 0
    let programs = lower(&interleaved_one_f_one_b(1, 2, 1), false).unwrap().replicate();
    let run = |costs: &Costs| times(&simulate(&programs, costs).spans[0]);
    // F, B and EXCHANGE begin at the earliest time; REDUCE and GATHER use the link one after the other
    let spans = |[first, second]: [f64; 2], [last, other]: [(f64, f64); 2], gathered: [(f64, f64); 2]| {
        let (backward, end) = (second + 1.0, other.1);
        expected(&[
            ("0F0", first, first + 1.0),
            ("1F0", second, second + 1.0),
            ("1B0", backward, backward + 1.0),
            ("1REDUCE", last.0, last.1),
            ("0B0", backward + 1.0, backward + 2.0),
            ("0REDUCE", other.0, other.1),
            ("EXCHANGE", end, end),
            ("UPDATE", end, end),
            ("0GATHER", gathered[0].0, gathered[0].1),
            ("1GATHER", gathered[1].0, gathered[1].1),
            ("SNAPSHOT", end, end),
        ])
    };
    let none = [(0.0, 0.0); 2];
    // the reduction of chunk 1 has ended when the reduction of chunk 0 begins
    assert_eq!(run(&exchange([0.5, 1.0], [0.0; 2])), spans([0.0, 1.0], [(3.0, 4.0), (4.0, 4.5)], none));
    // the reduction of chunk 1 delays the reduction of chunk 0, because a rank runs one reduction after the other
    assert_eq!(run(&exchange([0.5, 3.0], [0.0; 2])), spans([0.0, 1.0], [(3.0, 6.0), (6.0, 6.5)], none));
    // the weights of chunk 1 arrive during chunk 0's forward if their GATHER takes 0.5 s, and after this forward if the
    // GATHER takes 2 s
    let gathered = [(0.0, 0.25), (0.25, 0.75)];
    assert_eq!(run(&exchange([0.0; 2], [0.25, 0.5])), spans([0.25, 1.25], [(3.25, 3.25), (4.25, 4.25)], gathered));
    let gathered = [(0.0, 0.25), (0.25, 2.25)];
    assert_eq!(run(&exchange([0.0; 2], [0.25, 2.0])), spans([0.25, 2.25], [(4.25, 4.25), (5.25, 5.25)], gathered));
}

#[test]
fn an_exchange_chunk_by_chunk_is_never_slower_than_all_at_once() {
    for (ranks, chunks_per_rank, microbatches) in [(1, 2, 4), (2, 2, 4), (4, 2, 8), (3, 1, 6), (4, 3, 12)] {
        let schedules = [
            interleaved_one_f_one_b(ranks, chunks_per_rank, microbatches),
            interleaved_zero_bubble(ranks, chunks_per_rank, microbatches),
        ];
        for schedule in schedules {
            let programs = lower(&schedule, true).unwrap().replicate();
            let chunks = ranks * chunks_per_rank;
            let [reduce, gather] =
                [3, 5].map(|of| (0..chunks).map(|chunk| 0.1 * ((chunk * of) % 7) as f64).collect::<Vec<f64>>());
            let exchanged = |seconds: &[f64], rank: usize| -> f64 {
                programs.placement.chunks_of(rank).map(|chunk| seconds[chunk]).sum()
            };
            let all = (0..ranks).map(|rank| exchanged(&reduce, rank) + exchanged(&gather, rank)).fold(0.0, f64::max);
            let free = Costs { link_seconds: 0.1, ..Costs::uniform(chunks) };
            let costs = Costs { reduce_seconds: reduce, gather_seconds: gather, ..free.clone() };
            let [free, overlapped] = [free, costs].map(|costs| simulate(&programs, &costs).makespan);
            let name = &schedule.name;
            assert!(free <= overlapped && overlapped <= free + 2.0 * all + 1e-9, "{name}: {free}, {overlapped}, {all}");
        }
    }
}
