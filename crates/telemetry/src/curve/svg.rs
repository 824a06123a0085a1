//! The loss curve as a self-contained SVG with a light and a dark colour scheme.

use std::fmt::Write;

use stagecoach_pipeline::escape_xml;

use super::series::{CurvePoint, LossSeries, downsample};
use super::ticks::{labels, step_label, ticks, whole_ticks};
use crate::StepRecord;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 928.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 470.0;

/// The maximum number of points of a line: about two per pixel of the width.
const MAX_POINTS: usize = 1800;

/// The largest number of points that are drawn as circles. A series with more points is only a line.
const MAX_CIRCLES: usize = 60;

const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#57606a}
.page{fill:#ffffff}.title{font-size:19px;font-weight:600;fill:#1f2328}.grid{stroke:#e4e8ec}.axis{stroke:#8c959f}
.training,.smoothed{fill:none;stroke:#2f6fde;stroke-linejoin:round;stroke-linecap:round}
.training{stroke-width:1;opacity:.38}.smoothed{stroke-width:2.6}.dot{fill:#2f6fde;opacity:.6}
.heldout{fill:#d9480f;stroke:#ffffff;stroke-width:1.5}.heldoutline{fill:none;stroke:#d9480f;stroke-width:1.2;opacity:.55}
.entropy{stroke:#6e7781;stroke-width:1.4;stroke-dasharray:7 5}.note{fill:#57606a}
@media (prefers-color-scheme:dark){text{fill:#9da7b3}.page{fill:#0d1117}.title{fill:#e6edf3}.grid{stroke:#222b36}
.axis{stroke:#57606a}.training,.smoothed{stroke:#6ea8fe}.dot{fill:#6ea8fe}.heldout{fill:#ff9f5a;stroke:#0d1117}
.heldoutline{stroke:#ff9f5a}.entropy{stroke:#8b949e}.note{fill:#9da7b3}}";

/// Draws the losses. `entropy` is the unigram entropy of the held-out tokens, in nats per token.
pub fn svg(title: &str, records: &[StepRecord], entropy: Option<f64>) -> String {
    draw(title, &LossSeries::new(records, entropy))
}

/// Draws two series of training losses for the same steps. The losses of `others` have the style of held-out losses,
/// and the legend calls them `name`.
pub fn comparison_svg(title: &str, records: &[StepRecord], others: &[StepRecord], name: &str) -> String {
    draw(title, &LossSeries::comparison(records, others, name))
}

fn draw(title: &str, series: &LossSeries) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         role=\"img\">\n<title>{title}: loss by step</title>\n<style>\n{STYLE}\n</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"38\">{title}</text>\n",
        title = escape_xml(title)
    );
    match (series.steps(), series.losses()) {
        (Some(steps), Some(losses)) => SvgPlot { out: &mut out, steps, losses }.draw(series),
        _ => text(&mut out, "note", WIDTH / 2.0, HEIGHT / 2.0, "middle", "no step has been trained yet"),
    }
    out + "</svg>\n"
}

struct SvgPlot<'a> {
    out: &'a mut String,
    /// The range of the x axis.
    steps: (f64, f64),
    /// The range of the y axis, in nats per token.
    losses: (f64, f64),
}

impl SvgPlot<'_> {
    fn draw(mut self, series: &LossSeries) {
        self.axes();
        if let Some(entropy) = series.entropy {
            self.entropy(entropy);
        }
        for run in &series.training {
            match run.as_slice() {
                [alone] => self.circle("dot", *alone, 2.5),
                run => self.line("training", run),
            }
        }
        if series.smoothed.len() > 1 {
            self.line("smoothed", &series.smoothed);
        }
        if series.held_out.len() > 1 {
            self.line("heldoutline", &series.held_out);
        }
        for point in series.held_out.iter().filter(|_| series.held_out.len() <= MAX_CIRCLES) {
            self.circle("heldout", *point, 4.5);
        }
        self.legend(series);
    }

    fn x(&self, step: f64) -> f64 {
        LEFT + (step - self.steps.0) / (self.steps.1 - self.steps.0) * (RIGHT - LEFT)
    }

    fn y(&self, loss: f64) -> f64 {
        BOTTOM - (loss - self.losses.0) / (self.losses.1 - self.losses.0) * (BOTTOM - TOP)
    }

    fn axes(&mut self) {
        let loss_ticks = ticks(self.losses.0, self.losses.1, 8);
        for (tick, label) in loss_ticks.iter().zip(labels(&loss_ticks)) {
            let y = self.y(*tick);
            segment(self.out, "grid", (LEFT, y), (RIGHT, y));
            text(self.out, "label", LEFT - 10.0, y + 4.5, "end", &label);
        }
        for tick in whole_ticks(self.steps.0, self.steps.1, 10) {
            let x = self.x(tick);
            segment(self.out, "axis", (x, BOTTOM), (x, BOTTOM + 5.0));
            text(self.out, "label", x, BOTTOM + 22.0, "middle", &step_label(tick));
        }
        segment(self.out, "axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        text(self.out, "label", (LEFT + RIGHT) / 2.0, BOTTOM + 46.0, "middle", "step");
        text(self.out, "label", LEFT - 10.0, TOP - 4.0, "end", "nats");
    }

    fn entropy(&mut self, entropy: f64) {
        let y = self.y(entropy);
        segment(self.out, "entropy", (LEFT, y), (RIGHT, y));
        // the label is above the line, unless the label would be outside the plot
        let label_y = if y - TOP < 20.0 { y + 17.0 } else { y - 7.0 };
        text(self.out, "note", RIGHT, label_y, "end", &format!("unigram entropy {entropy:.3}"));
    }

    fn line(&mut self, class: &str, points: &[CurvePoint]) {
        let _ = write!(self.out, "<path class=\"{class}\" d=\"");
        for (index, point) in downsample(points, MAX_POINTS).into_iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(self.out, "{letter}{:.1} {:.1}", self.x(point.0), self.y(point.1));
        }
        self.out.push_str("\"/>\n");
    }

    fn circle(&mut self, class: &str, point: CurvePoint, radius: f64) {
        let (x, y) = (self.x(point.0), self.y(point.1));
        let _ = writeln!(self.out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>");
    }

    /// Draws the names and the last values of the lines, from left to right above the plot.
    fn legend(&mut self, series: &LossSeries) {
        let mut x = LEFT;
        let y = 62.0;
        if let Some(last) = series.training.last().and_then(|run| run.last()) {
            segment(self.out, "smoothed", (x, y - 4.5), (x + 24.0, y - 4.5));
            let label = format!(
                "{} {:.3} at step {} (bold: smoothed)",
                series.name,
                last.1,
                indicatif::HumanCount(last.0 as u64)
            );
            text(self.out, "label", x + 32.0, y, "start", &label);
            x += 60.0 + 6.6 * label.len() as f64;
        }
        if let Some(last) = series.held_out.last() {
            let _ =
                writeln!(self.out, "<circle class=\"heldout\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\"/>", x + 6.0, y - 4.5);
            text(self.out, "label", x + 18.0, y, "start", &format!("{} {:.3}", series.points_name, last.1));
        }
    }
}

fn segment(out: &mut String, class: &str, from: CurvePoint, to: CurvePoint) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, content: &str) {
    let content = escape_xml(content);
    let _ =
        writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::records;
    use super::*;

    #[test]
    fn the_plot_has_lines_points_and_labels() {
        let mut run = records(&[6.0, 5.0, f32::NAN, 4.0, 3.5, f32::NAN, 3.0]);
        run[1].evaluation_loss = Some(5.2);
        run[6].evaluation_loss = Some(3.4);
        let picture = svg("my <job>", &run, Some(5.5));
        assert_eq!(picture.matches("class=\"training\"").count(), 2);
        assert_eq!(picture.matches("class=\"dot\"").count(), 1);
        assert_eq!(picture.matches("class=\"heldout\"").count(), 3);
        assert!(picture.contains("my &lt;job&gt;") && picture.contains("unigram entropy 5.500"));
        assert!(picture.contains("training loss 3.000 at step 7") && picture.contains("held-out loss 3.400"));
        assert!(picture.contains("prefers-color-scheme:dark") && !picture.contains("NaN") && !picture.contains("inf"));
    }

    #[test]
    fn no_point_and_one_point() {
        for run in [records(&[]), records(&[f32::NAN])] {
            assert!(svg("x", &run, Some(1.0)).contains("no step has been trained yet"));
        }
        let one = svg("x", &records(&[2.0]), None);
        assert!(one.contains("class=\"dot\"") && !one.contains("<path") && !one.contains("NaN"));
    }

    #[test]
    fn two_runs_of_the_same_steps_have_a_line_each() {
        let picture = comparison_svg("x", &records(&[3.0; 200]), &records(&[2.0; 200]), "without <a>.txt:1");
        assert!(picture.contains("class=\"heldoutline\"") && picture.contains("class=\"training\""));
        assert_eq!(picture.matches("<circle").count(), 1, "that of the legend");
        assert!(picture.contains("as trained 3.000 at step 200") && picture.contains("without &lt;a&gt;.txt:1 2.000"));
    }

    #[test]
    fn a_long_run_stays_a_small_file() {
        let losses: Vec<f32> = (0..200_000).map(|step| 3.0 + (step as f32).sin()).collect();
        assert!(svg("x", &records(&losses), None).len() < 80_000);
    }
}
