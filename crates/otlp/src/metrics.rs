//! Converts OpenMetrics text, which this project's processes write for Prometheus, to OTLP metrics with the same names.

use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, metric,
    number_data_point,
};

use crate::span::text_attribute;

/// The time at which counting started, and the current time, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// A metric with its metadata and its samples.
#[derive(Debug, Default)]
struct MetricFamily<'t> {
    name: &'t str,
    help: &'t str,
    kind: &'t str,
    unit: &'t str,
    samples: Vec<Sample<'t>>,
}

#[derive(Debug)]
struct Sample<'t> {
    /// The suffix after the family's name in the name of the sample: `_total`, `_bucket`, ...
    suffix: &'t str,
    labels: Labels,
    value: f64,
}

type Labels = Vec<(String, String)>;

/// Returns the metrics in `text`. Lines that are not metrics are skipped.
pub(crate) fn read(text: &str, interval: Interval) -> Vec<Metric> {
    families(text).into_iter().filter_map(|family| family.encode(interval)).collect()
}

fn families(text: &str) -> Vec<MetricFamily<'_>> {
    let mut families: Vec<MetricFamily<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (Some(what), Some(name)) = (words.next(), words.next()) else { continue };
            let rest = words.next().unwrap_or_default();
            if families.last().is_none_or(|family| family.name != name) {
                families.push(MetricFamily { name, ..MetricFamily::default() });
            }
            let Some(family) = families.last_mut() else { continue };
            match what {
                "HELP" => family.help = rest,
                "TYPE" => family.kind = rest,
                "UNIT" => family.unit = rest,
                _ => {}
            }
        } else if let Some(family) = families.last_mut() {
            family.samples.extend(sample(line, family.name));
        }
    }
    families
}

/// Parses a line as a sample of the family `name`. Returns `None` if the line is not such a sample.
fn sample<'t>(line: &'t str, name: &str) -> Option<Sample<'t>> {
    let rest = line.strip_prefix(name)?;
    let (suffix, rest) = rest.split_at(rest.find([' ', '{'])?);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(labels) => read_labels(labels)?,
        None => (Labels::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { suffix, labels, value })
}

/// Reads `key="value",...}`. Returns the labels, and the text after them.
fn read_labels(mut text: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        text = text.trim_start_matches(',');
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, quoted) = text.split_once("=\"")?;
        let (mut value, mut characters) = (String::new(), quoted.char_indices());
        text = loop {
            match characters.next()? {
                (at, '"') => break &quoted[at + 1..],
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, character) => value.push(character),
            }
        };
        labels.push((key.to_owned(), value));
    }
}

impl MetricFamily<'_> {
    fn encode(&self, interval: Interval) -> Option<Metric> {
        let temporality = AggregationTemporality::Cumulative.into();
        let data = match self.kind {
            "gauge" => metric::Data::Gauge(Gauge { data_points: self.numbers("", interval) }),
            "counter" => metric::Data::Sum(Sum {
                data_points: self.numbers("_total", interval),
                aggregation_temporality: temporality,
                is_monotonic: true,
            }),
            "histogram" => metric::Data::Histogram(Histogram {
                data_points: self.histograms(interval),
                aggregation_temporality: temporality,
            }),
            _ => return None,
        };
        // A ratio gets no unit, because Prometheus would append `_ratio` to the metric's name, which already ends in
        // `_ratios`.
        let unit = match self.unit {
            "seconds" => "s",
            "bytes" => "By",
            _ => "",
        };
        let (name, description, unit) = (self.name.to_owned(), self.help.to_owned(), unit.to_owned());
        Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
    }

    fn numbers(&self, suffix: &str, interval: Interval) -> Vec<NumberDataPoint> {
        let point = |sample: &Sample<'_>| NumberDataPoint {
            attributes: sample.labels.iter().map(text_attribute).collect(),
            start_time_unix_nano: interval.start,
            time_unix_nano: interval.now,
            value: Some(number_data_point::Value::AsDouble(sample.value)),
            ..NumberDataPoint::default()
        };
        self.samples.iter().filter(|sample| sample.suffix == suffix).map(point).collect()
    }

    /// Returns one data point for each set of labels. A bucket in the text counts all values up to its bound. A bucket
    /// in OTLP counts only the values between the previous bucket's bound and its own.
    fn histograms(&self, interval: Interval) -> Vec<HistogramDataPoint> {
        let mut points: Vec<(Labels, HistogramDataPoint)> = Vec::new();
        for sample in &self.samples {
            let (bounds, labels): (Labels, Labels) = sample.labels.iter().cloned().partition(|(key, _)| key == "le");
            let at = points.iter().position(|(found, _)| *found == labels).unwrap_or_else(|| {
                let attributes = labels.iter().map(text_attribute).collect();
                let (start_time_unix_nano, time_unix_nano) = (interval.start, interval.now);
                let point =
                    HistogramDataPoint { attributes, start_time_unix_nano, time_unix_nano, ..Default::default() };
                points.push((labels, point));
                points.len() - 1
            });
            let point = &mut points[at].1;
            match sample.suffix {
                "_sum" => point.sum = Some(sample.value),
                "_count" => point.count = sample.value as u64,
                "_bucket" => {
                    let below: u64 = point.bucket_counts.iter().sum();
                    point.bucket_counts.push((sample.value as u64).saturating_sub(below));
                    let bound = bounds.first().and_then(|(_, bound)| bound.parse().ok());
                    // the last bucket has no bound
                    point.explicit_bounds.extend(bound.filter(|bound: &f64| bound.is_finite()));
                }
                _ => {}
            }
        }
        points.into_iter().map(|(_, point)| point).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP stagecoach_step Steps complete.
# TYPE stagecoach_step gauge
stagecoach_step 7
# HELP stagecoach_loss Loss.
# TYPE stagecoach_loss gauge
stagecoach_loss NaN
# HELP stagecoach_stage_bubble_ratios Idle.
# TYPE stagecoach_stage_bubble_ratios gauge
# UNIT stagecoach_stage_bubble_ratios ratios
stagecoach_stage_bubble_ratios{stage=\"0\"} 0.25
stagecoach_stage_bubble_ratios{stage=\"1\",why=\"a \\\"b\\\"\\\\\\n}, c\"} 0.5
# HELP stagecoach_sent_bytes Sent.
# TYPE stagecoach_sent_bytes counter
# UNIT stagecoach_sent_bytes bytes
stagecoach_sent_bytes_total 12
# HELP stagecoach_wait Wait.
# TYPE stagecoach_wait histogram
stagecoach_wait_sum{phase=\"joined\"} 3.5
stagecoach_wait_count{phase=\"joined\"} 3
stagecoach_wait_bucket{le=\"0.5\",phase=\"joined\"} 1
stagecoach_wait_bucket{le=\"1.0\",phase=\"joined\"} 1
stagecoach_wait_bucket{le=\"+Inf\",phase=\"joined\"} 3
# EOF
";

    #[test]
    fn every_kind_is_read() {
        let metrics = read(TEXT, Interval { start: 1, now: 2 });
        let names: Vec<_> = metrics.iter().map(|metric| (&*metric.name, &*metric.unit)).collect();
        let expected = [
            ("stagecoach_step", ""),
            ("stagecoach_loss", ""),
            ("stagecoach_stage_bubble_ratios", ""),
            ("stagecoach_sent_bytes", "By"),
            ("stagecoach_wait", ""),
        ];
        assert_eq!(names, expected);
        assert_eq!(metrics[0].description, "Steps complete.");
        let value = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            _ => panic!("{point:?}"),
        };
        let Some(metric::Data::Gauge(step)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert_eq!(step.data_points.iter().map(value).collect::<Vec<_>>(), [7.0]);
        let Some(metric::Data::Gauge(loss)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert!(value(&loss.data_points[0]).is_nan());
        let Some(metric::Data::Gauge(bubble)) = &metrics[2].data else { panic!("{metrics:?}") };
        assert_eq!(bubble.data_points.iter().map(value).collect::<Vec<_>>(), [0.25, 0.5]);
        let why = text_attribute(&("why".to_owned(), "a \"b\"\\\n}, c".to_owned()));
        assert_eq!(bubble.data_points[1].attributes[1], why);
        let Some(metric::Data::Sum(sent)) = &metrics[3].data else { panic!("{metrics:?}") };
        assert!(
            sent.is_monotonic && sent.data_points[0].start_time_unix_nano == 1 && value(&sent.data_points[0]) == 12.0
        );
        let Some(metric::Data::Histogram(wait)) = &metrics[4].data else { panic!("{metrics:?}") };
        let [point] = &wait.data_points[..] else { panic!("{wait:?}") };
        assert_eq!((point.count, point.sum), (3, Some(3.5)));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[1, 0, 2][..], &[0.5, 1.0][..]));
        assert_eq!(point.attributes, [text_attribute(&("phase".to_owned(), "joined".to_owned()))]);
    }

    #[test]
    fn broken_lines_are_left_out() {
        for line in
            ["stagecoach_step", "stagecoach_step{a=\"b", "stagecoach_step{a} 1", "stagecoach_step x", "other 1", ""]
        {
            let metrics =
                read(&format!("{line}\n# TYPE stagecoach_step gauge\n{line}\n"), Interval { start: 1, now: 2 });
            let Some(metric::Data::Gauge(gauge)) = &metrics[0].data else { panic!("{line}") };
            assert!(gauge.data_points.is_empty(), "{line}");
        }
        assert!(read("# \n#\n# TYPE\n1\n", Interval { start: 1, now: 2 }).is_empty());
    }
}
