//! Places the ticks of an axis at round numbers.

/// Returns multiples of 1, 2 or 5 times a power of ten within `low..=high`: at most `max_ticks` of them, where a limit
/// below two counts as two. The list is empty unless `low < high` and both are finite.
pub fn ticks(low: f64, high: f64, max_ticks: usize) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf((span / max_ticks.max(1) as f64).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
    let within = |step: f64| {
        // without the tolerance, a rounding error could exclude a tick at a bound
        let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        (first..=last).map(|index| index as f64 * step).collect::<Vec<_>>()
    };
    steps.iter().map(|step| within(step * power)).find(|found| found.len() <= max_ticks.max(2)).unwrap_or_default()
}

/// Returns the ticks that are whole numbers.
pub fn whole_ticks(low: f64, high: f64, max_ticks: usize) -> Vec<f64> {
    ticks(low, high, max_ticks).into_iter().filter(|tick| tick.fract() == 0.0).collect()
}

/// Returns the labels of the ticks. All labels have the number of decimals that the smallest distance of two ticks
/// needs.
pub fn labels(ticks: &[f64]) -> Vec<String> {
    let distance = ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
    let digits = if distance.is_finite() { (-distance.log10() - 1e-9).ceil().clamp(0.0, 6.0) as usize } else { 2 };
    // `+ 0.0` makes a negative zero positive
    ticks.iter().map(|tick| format!("{:.digits$}", tick + 0.0)).collect()
}

/// Returns the label of a step, such as `20k` for 20000.
pub fn step_label(step: f64) -> String {
    if step >= 10_000.0 && step % 1000.0 == 0.0 { format!("{}k", step / 1000.0) } else { format!("{step}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 10.0, 6), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(4.13, 8.41, 6), [5.0, 6.0, 7.0, 8.0]);
        assert_eq!(ticks(0.0, 600.0, 8), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]);
        assert_eq!(labels(&ticks(4.1, 4.35, 6)), ["4.10", "4.15", "4.20", "4.25", "4.30", "4.35"]);
        assert_eq!(labels(&ticks(-0.1, 0.1, 5)), ["-0.10", "-0.05", "0.00", "0.05", "0.10"]);
        assert_eq!(whole_ticks(0.0, 3.0, 10), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!((step_label(20_000.0), step_label(500.0)), ("20k".into(), "500".into()));
    }

    #[test]
    fn an_empty_range_has_no_ticks() {
        assert!(ticks(1.0, 1.0, 5).is_empty());
        assert!(ticks(f64::NAN, 1.0, 5).is_empty());
        assert!(ticks(0.0, f64::INFINITY, 5).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_range_has_a_few_ticks(low in -1e6..1e6f64, span in 1e-3..1e6f64, most in 2usize..12) {
            let found = ticks(low, low + span, most);
            proptest::prop_assert!(!found.is_empty() && found.len() <= most);
            proptest::prop_assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
            proptest::prop_assert!(found.iter().all(|tick| *tick >= low - span * 1e-6 && *tick <= low + span * 1.000_001));
        }
    }
}
