//! Tests the reading and writing of CSV schedules. Errors name the line, the column and the action.

use stagecoach_pipeline::{
    CsvError, Limits, Placement, Schedule, from_csv, interleaved_one_f_one_b, interleaved_zero_bubble, lower,
    one_f_one_b, to_csv, verify, zbv_zero_bubble,
};

#[test]
fn the_format_is_that_of_torchtitan() {
    let csv = to_csv(&one_f_one_b(2, 3));
    assert_eq!(csv, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
    // idle cells, spaces, quotes, Windows line ends, a byte order mark and blank lines at the end change nothing
    let loose = "\u{feff}0F0,0F1,,\"0B0\", 0F2 ,,0B1,,0B2,\r\n,1F0,1B0,1F1,1B1,1F2,1B2,,,\r\n\r\n";
    let schedule = from_csv(loose, 2).unwrap();
    assert_eq!((to_csv(&schedule), schedule.microbatches), (csv, 3));
}

#[test]
fn a_split_backward_and_several_chunks_are_read() {
    let v = "0F0,,,3F0,3I0,,,0I0,0W0,3W0\n,1F0,2F0,,,2I0,1I0,2W0,1W0\n";
    let schedule = from_csv(v, 2).unwrap();
    assert_eq!(schedule.ranks[0].len() + schedule.ranks[1].len(), 12);
    assert_eq!(schedule.in_flight(), [2, 2]);
    assert_eq!(schedule.placement, Placement::v_shaped(2));
    // a work item is in flight until its W
    let late = from_csv("0F0,0I0,0F1,0I1,0W0,0W1", 1).unwrap();
    assert_eq!((late.microbatches, late.in_flight()), (2, vec![2]));
}

#[test]
fn invalid_csv_reports_line_column_and_action() {
    let table = [
        ("not an action", "0F0,0X0\n1F0,1B0", "line 1, column 2: `0X0` is not an action"),
        ("a small letter", "0F0,0B0\n1F0,,1b0", "line 2, column 3: `1b0` is not an action"),
        ("an overlapped backward without forward", "(0B0;0F0)OVERLAP_F_B\n1F0,1B0", "line 1, column 1, action 0B0: "),
        ("an overlap of nothing", "0F0,()OVERLAP_F_B\n1F0", "line 1, column 2: `` is not an action"),
        ("no action in an overlap", "0F0,(0B0;0X0)OVERLAP_F_B\n1F0", "line 1, column 2: `0X0` is not an action"),
        ("another overlap", "0F0,(0F1;0B0)OVERLAP\n1F0", "line 1, column 2: `(0F1;0B0)OVERLAP` is not an action"),
        ("another separator", "0F0;0B0\n1F0;1B0", "line 1, column 1: `0F0;0B0` is not an action"),
        ("communication", "0F0,0SEND_F0,0B0\n1F0,1B0", "line 1, column 2, action 0SEND_F0: "),
        ("an action of the step", "0F0,0B0\n1F0,1B0,UPDATE", "line 2, column 3, action UPDATE: "),
        ("a chunk without backward", "0F0,0B0\n1F0,,2F0,1B0", "line 2, column 4, action 1B0: "),
        ("a chunk that is left out", "0F0,0B0\n2F0,2B0", "the CSV has actions of chunk 2 but none of chunk 1"),
        ("a rank without actions", "0F0,1F0,1B0,0B0\n,,,", "line 2 has no chunk of its own"),
        ("a rank with another's alone", "0F0,0B0,0F1\n0B1", "line 2 has no chunk of its own"),
        ("a microbatch that is left out", "0F0,0F2,0B0\n1F0,1B0", "line 1, column 4, action 0F1: "),
        ("another rank's chunk", "0F0,1F0,0B0\n1F0,1B0", "line 1, column 2, action 1F0: "),
        ("a forward twice", "0F0,,0F0,0B0\n1F0,1B0", "line 1, column 3, action 0F0: "),
        ("a backward twice", "0F0,0B0,0B0\n1F0,1B0", "line 1, column 3, action 0B0: "),
        ("a backward whole and split", "0F0,0B0,0I0,0W0\n1F0,1B0", "line 1, column 3, action 0I0: "),
        ("a backward before its forward", "0B0,0F0\n1F0,1B0", "line 1, column 1, action 0B0: "),
        ("weights before the input", "0F0,0W0,0I0\n1F0,1B0", "line 1, column 2, action 0W0: "),
        ("a forward that is missing", "0F0,0F1,0B0,0B1\n1F0,1B0,,", "line 2, column 5, action 1F1: "),
        ("a backward that is missing", "0F0,0F1,0B0\n1F0,1B0,1F1,1B1", "line 1, column 4, action 0B1: "),
        ("weights that are missing", "0F0,0I0\n1F0,1B0", "line 1, column 3, action 0W0: "),
        ("gradients out of order", "0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1", "line 1, column 3, action 0B1: "),
        ("losses out of order", "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1", "line 2, column 1, action 1F1: "),
        ("a deadlock", "0F0,0B0,0F1,0B1\n1F0,1F1,,1B0,1B1", "line 1, column 2, action 0B0: "),
    ];
    for (what, csv, expected) in table {
        let error = from_csv(csv, 2).expect_err(what).to_string();
        assert!(error.starts_with(expected), "{what}: {error}");
    }
}

#[test]
fn a_csv_for_another_pipeline_is_refused() {
    let lines = from_csv("0F0,0B0", 2).unwrap_err();
    assert_eq!(lines, CsvError::Lines { found: 1, ranks: 2 });
    for empty in ["", "\n\n", ",,,\n,"] {
        assert_eq!(from_csv(empty, 2), Err(CsvError::Empty));
    }
    let huge = format!("0F{},0B0\n1F0,1B0", usize::MAX);
    assert!(from_csv(&huge, 2).is_err());
}

macro_rules! data {
    ($name:literal) => {
        ($name, include_str!(concat!("../data/", $name, ".csv")))
    };
}

/// Reads a file of `tests/data`, and verifies the schedule with the default limits of the links.
fn read((name, text): (&str, &str), ranks: usize) -> Schedule {
    let schedule = from_csv(text, ranks).unwrap_or_else(|e| panic!("{name}: {e}"));
    for tied in [false, true] {
        let programs = lower(&schedule, tied).unwrap_or_else(|e| panic!("{name}: {e}"));
        verify(&programs, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    schedule
}

#[test]
fn schedules_that_torchtitan_wrote_are_read_with_their_placement() {
    for (file, ranks, chunks, microbatches) in [
        (data!("torchtitan-2-ranks"), 2, 2, 8),
        (data!("torchtitan-4-ranks"), 4, 2, 6),
        (data!("torchtitan-8-ranks"), 8, 1, 10),
    ] {
        let schedule = read(file, ranks);
        assert_eq!((&schedule.placement, schedule.microbatches), (&Placement::looped(ranks, chunks), microbatches));
    }
}

#[test]
fn schedules_that_torch_wrote_are_ours() {
    for (file, ours) in [
        (data!("torch-Interleaved1F1B-4-ranks-10-microbatches"), interleaved_one_f_one_b(4, 2, 10)),
        (data!("torch-InterleavedZeroBubble-4-ranks-8-microbatches"), interleaved_zero_bubble(4, 2, 8)),
        (data!("torch-ZBVZeroBubble-4-ranks-9-microbatches"), zbv_zero_bubble(4, 9)),
    ] {
        let schedule = read(file, 4);
        assert_eq!((schedule.ranks, schedule.placement), (ours.ranks, ours.placement), "{}", file.0);
    }
}

#[test]
fn an_overlap_is_its_actions_in_their_order() {
    let schedule = read(data!("torch-DualPipeV-4-ranks-10-microbatches"), 4);
    assert_eq!((&schedule.placement, schedule.microbatches), (&Placement::v_shaped(4), 10));
    let csv = to_csv(&schedule);
    assert!(csv.contains(",7F3,0F7,7B3,7F4,0B0,0F8,"), "{csv}");
    // an error names the cell
    let twice = "0F0,0F1,(0B0;0B0)OVERLAP_F_B,0B1";
    let error = from_csv(twice, 1).unwrap_err().to_string();
    assert!(error.starts_with("line 1, column 3, action 0B0: "), "{error}");
}
