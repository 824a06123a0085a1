//! Draws the figure as an SVG: the capacity of the trace, and the steps of each contender.

use std::fmt::Write;

use super::{REPLICAS, Replay, STAGES, Trace};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 720.0;
/// The y coordinates of the top and the bottom of the plot of the steps, and of the plot of the nodes.
const STEPS: (f64, f64) = (60.0, 370.0);
const NODES: (f64, f64) = (410.0, 510.0);
const MAX_NODES: f64 = (STAGES * REPLICAS) as f64;
const COLOURS: [&str; 5] = ["#2f6fde", "#d9480f", "#e8a33d", "#6e7781", "#a8b0b8"];
const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#57606a}.page{fill:#fff}.title{font-size:18px;\
font-weight:600;fill:#1f2328}.axis{stroke:#8c959f}.grid{stroke:#e4e8ec}.nodes{fill:#dbe7fb;stroke:#2f6fde}\
.line{fill:none;stroke-width:2.2}@media (prefers-color-scheme:dark){text{fill:#9da7b3}.page{fill:#0d1117}\
.title{fill:#e6edf3}.grid{stroke:#222b36}.nodes{fill:#1b2a45}}";

pub(super) fn draw(trace: &Trace, replays: &[Replay]) -> String {
    let hours = trace.nodes.len() as f64 * f64::from(trace.gap_seconds) / 3600.0;
    let x = |share: f64| LEFT + share * (RIGHT - LEFT);
    let y = |plot: (f64, f64), share: f64| plot.1 - share * (plot.1 - plot.0);
    let most = replays.iter().flat_map(|replay| replay.steps.iter().copied()).fold(1.0, f64::max);
    let most = (most / 500.0).ceil() * 500.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         role=\"img\">\n<title>Steps on spot nodes</title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"34\">Steps with the spot nodes of {hours:.0} hours</text>\n"
    );
    for (plot, top, count, name) in [(STEPS, most, 5, "steps"), (NODES, MAX_NODES, 2, "nodes")] {
        for tick in 0..=count {
            let share = f64::from(tick) / f64::from(count);
            let (value, at) = (top * share, y(plot, share));
            let _ = writeln!(out, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
            let _ =
                writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>", LEFT - 8.0, at + 4.0);
        }
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{name}</text>", plot.0 - 10.0);
    }
    for hour in (0..=hours as u32).step_by(2) {
        let at = x(f64::from(hour) / hours);
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{hour} h</text>", NODES.1 + 20.0);
    }
    let mut area = format!("M{LEFT},{}", NODES.1);
    for (point, nodes) in trace.nodes.iter().enumerate() {
        let (from, to) = (x(point as f64 / trace.nodes.len() as f64), x((point + 1) as f64 / trace.nodes.len() as f64));
        let at = y(NODES, *nodes as f64 / MAX_NODES);
        let _ = write!(area, "L{from:.1},{at:.1}L{to:.1},{at:.1}");
    }
    let _ = writeln!(out, "<path class=\"nodes\" d=\"{area}L{RIGHT},{}Z\"/>", NODES.1);
    // names that would overlap move apart
    let mut lowest = f64::MAX;
    let mut by_steps: Vec<(&Replay, &str)> = replays.iter().zip(COLOURS).collect();
    by_steps.sort_by(|(one, _), (other, _)| one.steps.last().partial_cmp(&other.steps.last()).unwrap());
    for (replay, colour) in by_steps {
        let last = replay.steps.len().saturating_sub(1).max(1) as f64;
        let point =
            |(look, steps): (usize, &f64)| format!("{:.1},{:.1}", x(look as f64 / last), y(STEPS, steps / most));
        let every = (replay.steps.len() / 1000).max(1);
        let points: Vec<String> = replay.steps.iter().enumerate().step_by(every).map(point).collect();
        let _ = writeln!(out, "<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"/>", points.join(" "));
        let done = replay.steps.last().copied().unwrap_or_default();
        lowest = (y(STEPS, done / most) + 4.0).min(lowest - 16.0);
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{lowest:.1}\" style=\"fill:{colour}\">{}: {done:.0}</text>",
            RIGHT + 10.0,
            replay.contender.name
        );
    }
    out + "</svg>\n"
}
