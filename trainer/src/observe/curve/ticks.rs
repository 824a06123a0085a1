//! Where an axis has its marks: at round numbers, few enough to be read.

/// Round numbers from `low` to `high`, both inside, 1, 2 or 5 times a power of ten apart, at most `most` (at least two
/// are tried for). Empty unless `low < high` and both are finite.
pub(super) fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf((span / most.max(1) as f64).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
    let within = |step: f64| {
        // The tolerance keeps a mark at an end that is round but for the last bit.
        let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        (first..=last).map(|index| index as f64 * step).collect::<Vec<_>>()
    };
    steps.iter().map(|step| within(step * power)).find(|marks| marks.len() <= most.max(2)).unwrap_or_default()
}

/// Marks in whole steps.
pub(super) fn whole_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    ticks(low, high, most).into_iter().filter(|mark| mark.fract() == 0.0).collect()
}

/// The marks' labels, all with as many digits after the point as the finest of them needs.
pub(super) fn labels(marks: &[f64]) -> Vec<String> {
    let apart = marks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
    let digits = if apart.is_finite() { (-apart.log10() - 1e-9).ceil().clamp(0.0, 6.0) as usize } else { 2 };
    // `+ 0.0` makes a negative zero positive.
    marks.iter().map(|mark| format!("{:.digits$}", mark + 0.0)).collect()
}

/// A step's label: 20000 as `20k`.
pub(super) fn step_label(step: f64) -> String {
    if step >= 10_000.0 && step % 1000.0 == 0.0 { format!("{}k", step / 1000.0) } else { format!("{step}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0, 6), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(4.13, 8.41, 6), [5.0, 6.0, 7.0, 8.0]);
        assert_eq!(ticks(0.0, 600.0, 8), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]);
        assert_eq!(labels(&ticks(4.1, 4.35, 6)), ["4.10", "4.15", "4.20", "4.25", "4.30", "4.35"]);
        assert_eq!(labels(&ticks(-0.1, 0.1, 5)), ["-0.10", "-0.05", "0.00", "0.05", "0.10"]);
        assert_eq!(whole_ticks(0.0, 3.0, 10), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!((step_label(20_000.0), step_label(500.0)), ("20k".into(), "500".into()));
    }

    #[test]
    fn no_span_no_marks() {
        assert!(ticks(1.0, 1.0, 5).is_empty());
        assert!(ticks(f64::NAN, 1.0, 5).is_empty());
        assert!(ticks(0.0, f64::INFINITY, 5).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_span_has_a_few_marks(low in -1e6..1e6f64, span in 1e-3..1e6f64, most in 2usize..12) {
            let marks = ticks(low, low + span, most);
            proptest::prop_assert!(!marks.is_empty() && marks.len() <= most);
            proptest::prop_assert!(marks.windows(2).all(|pair| pair[0] < pair[1]));
            proptest::prop_assert!(marks.iter().all(|mark| *mark >= low - span * 1e-6 && *mark <= low + span * 1.000_001));
        }
    }
}
