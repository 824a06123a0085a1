//! Draws a chart as SVG. The page's style sheet sets the colours and line widths. The module does no I/O.

use std::fmt::Write;

use maud::{Markup, html};
use stagecoach_telemetry::curve::{labels, step_label, ticks, whole_ticks};

use super::series::Column;

const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 232.0;
/// The free space to the right of the plot, in pixels. The last label of the steps' axis extends into this space.
const MARGIN: f64 = 14.0;
/// The width that each label of the steps' axis needs, in pixels.
const LABEL: f64 = 64.0;

/// A chart of values by step. Each [`Column`] summarises consecutive steps. The chart has a line through the means of
/// the columns, a band from the lowest to the highest value of each column, and single points.
pub(super) struct Chart<'a> {
    /// The description of the chart, for screen readers.
    pub(super) description: &'a str,
    /// The first and the last step.
    pub(super) steps: (u64, u64),
    /// The width of the chart, in pixels.
    pub(super) width: u32,
    pub(super) columns: &'a [Column],
    /// The columns of further lines, such as the losses of sources and held-out sets. Each line has two CSS classes:
    /// `other`, and the class that [`other_class`] returns for the line's index.
    pub(super) others: &'a [Vec<Column>],
    /// The values of a quantity that is measured only in some steps. Each value is drawn as a point.
    pub(super) points: &'a [Column],
    /// A value for comparison, drawn as a horizontal line.
    pub(super) reference: Option<f64>,
    /// Whether the axis of the values begins at 0.
    pub(super) from_zero: bool,
    /// The name of each zoom, and the URL query of the page after the zoom. The page's script reads the queries from
    /// `data-` attributes.
    pub(super) zooms: &'a [(&'static str, String)],
}

impl Chart<'_> {
    /// Returns the picture, or a sentence if there are no values.
    pub(super) fn draw(&self) -> Markup {
        let Some(values) = self.values() else {
            return html! { p.empty { "Nothing was measured in these steps." } };
        };
        let plot = Plot { steps: self.steps, values, right: f64::from(self.width) - MARGIN };
        let zoom = |name: &str| self.zooms.iter().find(|(known, _)| *known == name).map(|(_, query)| query);
        html! {
            svg.chart viewBox={ "0 0 " (self.width) " " (HEIGHT) } width=(self.width) height=(HEIGHT) role="img"
                aria-label=(self.description)
                data-first=(self.steps.0) data-last=(self.steps.1) data-left=(LEFT) data-right=(plot.right)
                data-earlier=[zoom("earlier")] data-later=[zoom("later")] data-in=[zoom("in")] data-out=[zoom("out")]
                data-all=[zoom("all")] {
                (plot.axes())
                @if let Some(reference) = self.reference {
                    (line("reference", (LEFT, plot.y(reference)), (plot.right, plot.y(reference))))
                }
                path.band d=(plot.band(self.columns)) {}
                path.line d=(plot.line(self.columns)) {}
                @if let [alone] = self.columns { (plot.dot("single", alone)) }
                @for (index, other) in self.others.iter().enumerate() {
                    path class={ "other " (other_class(index)) } d=(plot.line(other)) {}
                }
                path.pointline d=(plot.line(self.points)) {}
                @for point in self.points { (plot.dot("point", point)) }
            }
        }
    }

    /// Returns the lowest and the highest value on the axis, with a margin, or `None` if there are no values.
    fn values(&self) -> Option<(f64, f64)> {
        let all = || self.columns.iter().chain(self.points).chain(self.others.iter().flatten());
        let low = all().map(|column| column.low).chain(self.reference).reduce(f64::min)?;
        let high = all().map(|column| column.high).chain(self.reference).reduce(f64::max)?;
        all().next()?;
        let low = if self.from_zero { low.min(0.0) } else { low };
        let margin = if high > low { 0.06 * (high - low) } else { 0.05 * high.abs().max(0.1) };
        Some((if self.from_zero { low } else { low - margin }, high + margin))
    }
}

/// Returns the CSS class of the line with this index in [`Chart::others`]. The style sheet has five such classes, so
/// the classes repeat after five lines.
pub(super) fn other_class(index: usize) -> String {
    format!("other-{}", index % 5)
}

struct Plot {
    steps: (u64, u64),
    values: (f64, f64),
    /// The right edge of the plot, in pixels.
    right: f64,
}

impl Plot {
    fn x(&self, step: f64) -> f64 {
        let (first, last) = (self.steps.0 as f64, self.steps.1 as f64);
        LEFT + ((step - first) / (last - first).max(1.0)).clamp(0.0, 1.0) * (self.right - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (value - self.values.0) / (self.values.1 - self.values.0) * (BOTTOM - TOP)
    }

    fn axes(&self) -> Markup {
        let heights = ticks(self.values.0, self.values.1, 6);
        let most = ((self.right - LEFT) / LABEL) as usize;
        html! {
            @for (tick, label) in heights.iter().zip(labels(&heights)) {
                (line("grid", (LEFT, self.y(*tick)), (self.right, self.y(*tick))))
                text.end x=(px(LEFT - 8.0)) y=(px(self.y(*tick) + 4.0)) { (label) }
            }
            @for tick in whole_ticks(self.steps.0 as f64, self.steps.1 as f64, most) {
                (line("axis", (self.x(tick), BOTTOM), (self.x(tick), BOTTOM + 5.0)))
                text.middle x=(px(self.x(tick))) y=(px(BOTTOM + 20.0)) { (step_label(tick)) }
            }
            (line("axis", (LEFT, BOTTOM), (self.right, BOTTOM)))
        }
    }

    /// Returns a path through the means.
    fn line(&self, columns: &[Column]) -> String {
        path(columns.iter().map(|column| (self.x(column.step), self.y(column.mean))))
    }

    /// Returns an area whose outline follows the highest values forward and the lowest values back.
    fn band(&self, columns: &[Column]) -> String {
        let high = columns.iter().map(|column| (self.x(column.step), self.y(column.high)));
        let low = columns.iter().rev().map(|column| (self.x(column.step), self.y(column.low)));
        path(high.chain(low))
    }

    fn dot(&self, class: &str, column: &Column) -> Markup {
        html! { circle class=(class) cx=(px(self.x(column.step))) cy=(px(self.y(column.mean))) r="3.5" {} }
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.enumerate() {
        // writing into a String does not fail
        let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    path
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(px(from.0)) y1=(px(from.1)) x2=(px(to.0)) y2=(px(to.1)) {} }
}

fn px(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::super::series::Series;
    use super::*;

    fn draw(columns: &[Column], points: &[Column], steps: (u64, u64), width: u32) -> String {
        let chart = Chart {
            description: "\"loss\" <script>",
            steps,
            width,
            columns,
            others: &[],
            points,
            reference: None,
            from_zero: false,
            zooms: &[("in", "?from=2&to=3".into())],
        };
        chart.draw().into_string()
    }

    #[test]
    fn what_is_shown_is_escaped_and_finite() {
        let mut series = Series::default();
        (1..=40).for_each(|step| series.push(step, 1.0 / step as f64));
        let picture = draw(&series.columns(1, 40, 500), &series.columns(3, 3, 9), (1, 40), 600);
        assert!(picture.contains("&lt;script&gt;") && !picture.contains("<script"), "{picture}");
        assert!(picture.contains("data-in=\"?from=2&amp;to=3\"") && !picture.contains("data-out"), "{picture}");
        assert!(!picture.contains("NaN") && !picture.contains("inf") && !picture.contains("style="), "{picture}");
        assert_eq!(picture.matches("class=\"point\"").count(), 1);
    }

    #[test]
    fn one_value_no_value_and_equal_values_are_drawn() {
        let mut series = Series::default();
        assert!(draw(&[], &[], (1, 2), 300).contains("Nothing was measured"));
        series.push(7, 2.0);
        assert!(draw(&series.columns(1, 9, 9), &[], (1, 9), 300).contains("class=\"single\""));
        series.push(8, 2.0);
        assert!(!draw(&series.columns(1, 9, 9), &[], (1, 9), 300).contains("NaN"));
    }

    #[test]
    fn a_picture_of_any_run_has_bounded_bytes() {
        let mut series = Series::default();
        (1..=200_000u64).for_each(|step| series.push(step, (step as f64 * 0.1).sin()));
        let picture = draw(&series.columns(1, 200_000, 1600), &series.columns(1, 200_000, 200), (1, 200_000), 1600);
        assert!(picture.len() < 120_000, "{} bytes", picture.len());
    }
}
