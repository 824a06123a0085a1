//! Reading and writing CSV schedules; errors name line, column and action.

use stagecoach_pipeline::{CsvError, Placement, from_csv, one_f_one_b, to_csv};

#[test]
fn the_format_is_that_of_torchtitan() {
    let csv = to_csv(&one_f_one_b(2, 3));
    assert_eq!(csv, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
    // Idle cells, spaces, quotes, Windows line ends, a byte order mark and blank lines at the end change nothing.
    let loose = "\u{feff}0F0,0F1,,\"0B0\", 0F2 ,,0B1,,0B2,\r\n,1F0,1B0,1F1,1B1,1F2,1B2,,,\r\n\r\n";
    let schedule = from_csv(loose, &Placement::linear(2), None).unwrap();
    assert_eq!((to_csv(&schedule), schedule.microbatches), (csv, 3));
}

#[test]
fn a_split_backward_and_several_chunks_are_read() {
    let v = "0F0,,,3F0,3I0,,,0I0,0W0,3W0\n,1F0,2F0,,,2I0,1I0,2W0,1W0\n";
    let schedule = from_csv(v, &Placement::v_shaped(2), Some(1)).unwrap();
    assert_eq!(schedule.ranks[0].len() + schedule.ranks[1].len(), 12);
    assert_eq!(schedule.in_flight(), [1, 1, 1, 1]);
    // Activations are kept until W.
    let late = from_csv("0F0,0I0,0F1,0I1,0W0,0W1", &Placement::linear(1), None).unwrap();
    assert_eq!((late.microbatches, late.in_flight()), (2, vec![2]));
}

#[test]
fn invalid_csv_reports_line_column_and_action() {
    let table = [
        ("not an action", 1, "0F0,0X0\n1F0,1B0", "line 1, column 2: `0X0` is not an action"),
        ("a small letter", 1, "0F0,0B0\n1F0,,1b0", "line 2, column 3: `1b0` is not an action"),
        ("torch's fused action", 1, "0F0,(0F1;0B0)OVERLAP_F_B\n1F0", "line 1, column 2: `(0F1;0B0)OVERLAP_F_B`"),
        ("another separator", 1, "0F0;0B0\n1F0;1B0", "line 1, column 1: `0F0;0B0` is not an action"),
        ("communication", 1, "0F0,0SEND_F0,0B0\n1F0,1B0", "line 1, column 2, action 0SEND_F0: "),
        ("an action of the step", 1, "0F0,0B0\n1F0,1B0,UPDATE", "line 2, column 3, action UPDATE: "),
        ("a chunk that doesn't exist", 1, "0F0,0B0\n1F0,,2F0,1B0", "line 2, column 3, action 2F0: "),
        ("a microbatch that doesn't exist", 2, "0F0,0F2,0B0\n1F0,1B0", "line 1, column 2, action 0F2: "),
        ("another rank's chunk", 1, "0F0,1F0,0B0\n1F0,1B0", "line 1, column 2, action 1F0: "),
        ("a forward twice", 1, "0F0,,0F0,0B0\n1F0,1B0", "line 1, column 3, action 0F0: "),
        ("a backward twice", 1, "0F0,0B0,0B0\n1F0,1B0", "line 1, column 3, action 0B0: "),
        ("a backward whole and split", 1, "0F0,0B0,0I0,0W0\n1F0,1B0", "line 1, column 3, action 0I0: "),
        ("a backward before its forward", 1, "0B0,0F0\n1F0,1B0", "line 1, column 1, action 0B0: "),
        ("weights before the input", 1, "0F0,0W0,0I0\n1F0,1B0", "line 1, column 2, action 0W0: "),
        ("a forward that is missing", 2, "0F0,0F1,0B0,0B1\n1F0,1B0,,", "line 2, column 5, action 1F1: "),
        ("a backward that is missing", 2, "0F0,0F1,0B0\n1F0,1B0,1F1,1B1", "line 1, column 4, action 0B1: "),
        ("weights that are missing", 1, "0F0,0I0\n1F0,1B0", "line 1, column 3, action 0W0: "),
        ("gradients out of order", 2, "0F0,0F1,0B1,0B0\n1F0,1F1,1B0,1B1", "line 1, column 3, action 0B1: "),
        ("losses out of order", 2, "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1", "line 2, column 1, action 1F1: "),
        ("a deadlock", 2, "0F0,0B0,0F1,0B1\n1F0,1F1,,1B0,1B1", "line 1, column 2, action 0B0: "),
        ("too many microbatches", 2, "0F0,0F1,0F2\n1F0", "line 1, column 3, action 0F2: "),
    ];
    for (what, microbatches, csv, expected) in table {
        let error = from_csv(csv, &Placement::linear(2), Some(microbatches)).expect_err(what).to_string();
        assert!(error.starts_with(expected), "{what}: {error}");
    }
}

#[test]
fn a_csv_for_another_pipeline_is_refused() {
    let lines = from_csv("0F0,0B0", &Placement::linear(2), None).unwrap_err();
    assert_eq!(lines, CsvError::Lines { found: 1, ranks: 2 });
    for empty in ["", "\n\n", ",,,\n,"] {
        assert_eq!(from_csv(empty, &Placement::linear(2), None), Err(CsvError::Empty));
    }
    let huge = format!("0F{},0B0\n1F0,1B0", usize::MAX);
    assert!(from_csv(&huge, &Placement::linear(2), None).is_err());
    let none = from_csv("0F0", &Placement::linear(1), Some(0)).unwrap_err();
    assert!(none.to_string().contains("at least one chunk and one microbatch"), "{none}");
}
