//! Means, medians, extremes and lines of a table.

/// Returns the mean, or NaN if there are no values.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the median. Returns the larger of the two middle values if the number of values is even, and NaN if there
/// are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns a percentile by the nearest-rank method, or NaN if there are no values. `share` is from 0 to 1.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).ceil() as usize;
    values.get(at.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Returns the smallest value, or NaN if there are no values.
pub(crate) fn fastest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}

/// Returns the largest value, or NaN if there are no values.
pub(crate) fn worst(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

/// Prints one line: a label, a value, and a remark.
pub(crate) fn line(what: &str, value: String, beside: &str) {
    println!("  {what:<34} {value:>14}   {beside}");
}

/// Returns a rate in megabytes per second.
pub(crate) fn rate(bytes: f64, seconds: f64) -> String {
    format!("{:.0} MB/s", bytes / seconds / 1e6)
}
