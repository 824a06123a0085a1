use super::{Panel, label, makespan, seconds, several_chunks};
use crate::timeline::ActionSpan;
use std::fmt::Write;

/// The sizes of the drawing in pixels. The width of the lanes is fixed, so that a step of any length fits a page.
const LEFT_PX: f64 = 76.0;
const LANES_WIDTH_PX: f64 = 980.0;
const RIGHT_PX: f64 = 84.0;
const TOP_PX: f64 = 72.0;
const LANE_HEIGHT_PX: f64 = 30.0;
const MESSAGE_HEIGHT_PX: f64 = 5.0;
const LANE_PITCH_PX: f64 = 48.0;
const HEADING_PX: f64 = 26.0;
/// The CSS class, the width of a digit and the margin, for each size of the labels inside the bars. The larger size
/// comes first.
const LABEL_SIZES: [(&str, f64, f64); 2] = [("number", 6.4, 5.0), ("number small", 4.9, 2.0)];

/// The CSS class, label and colour of each kind of action. White text has a contrast ratio of at least 4.5 on each
/// colour. Each colour stands out on a light and on a dark page.
const ACTION_STYLES: [(&str, &str, &str); 12] = [
    ("F", "forward", "#2a6fbb"),
    ("B", "backward", "#16805a"),
    ("I", "backward, input", "#16805a"),
    ("W", "backward, weights", "#9a6410"),
    ("SEND_F", "activations under way", "#6aa6e8"),
    ("SEND_B", "gradients under way", "#4fbf95"),
    ("REDUCE", "reduce gradients", "#a0568c"),
    ("REDUCE_TIED", "tied embedding", "#8a5a9e"),
    ("EXCHANGE", "exchange", "#7a55c7"),
    ("UPDATE", "update", "#b8415f"),
    ("GATHER", "gather weights", "#a34a3a"),
    ("SNAPSHOT", "snapshot", "#66707c"),
];

const CSS: &str = "text{font:12px ui-sans-serif,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#24292f}\
.paper{fill:#fff}.idle{fill:#eef1f4}.tick{stroke:#d5dae0;stroke-width:1}.faint{fill:#5b6570}\
.title{font-size:16px;font-weight:600}.heading{font-weight:600}.number{font-size:11px;fill:#fff;text-anchor:middle}.small{font-size:8.5px}.end{text-anchor:end}\
.middle{text-anchor:middle}@media(prefers-color-scheme:dark){text{fill:#e6e9ed}.paper{fill:#14181d}.idle{fill:#232a32}\
.tick{stroke:#39424c}.faint{fill:#a3adb8}.number{fill:#fff}}";

/// Returns the timelines as a self-contained SVG with a time axis. Each rank has a lane. The bars of a lane show
/// microbatch numbers, and the text at the right end shows the rank's bubble. A strip below the lane shows the
/// messages. Another strip shows the exchange between replicas. The colours follow the light or dark mode of the
/// browser. Tooltips show times.
pub fn timeline_svg(panels: &[Panel], title: &str) -> String {
    draw(panels, title, &format!("<style>{}</style>\n", timeline_css()))
}

/// Returns the SVG of [`timeline_svg`] without its style sheet, for a page whose style sheet contains [`timeline_css`].
pub fn timeline_svg_unstyled(panels: &[Panel], title: &str) -> String {
    draw(panels, title, "")
}

/// Returns the style sheet of the drawings. The selectors are short, so a page should nest them in a separate rule.
pub fn timeline_css() -> String {
    let fills = ACTION_STYLES.iter().map(|(kind, _, colour)| format!(".{kind}{{fill:{colour}}}"));
    fills.fold(CSS.to_owned(), |css, fill| css + &fill)
}

fn draw(panels: &[Panel], title: &str, style: &str) -> String {
    let bottom = TOP_PX + panels.iter().map(panel_height).sum::<f64>();
    let (width, height) = (LEFT_PX + LANES_WIDTH_PX + RIGHT_PX, bottom + 34.0);
    let makespan = makespan(panels);
    let scale = if makespan > 0.0 { LANES_WIDTH_PX / makespan } else { 0.0 };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\">\n<title>{0}</title>\n{style}<rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
        escape_xml(title)
    );
    text(&mut svg, LEFT_PX, 28.0, "title", &escape_xml(title));
    legend(&mut svg, panels);
    axis(&mut svg, makespan, scale, bottom);
    text(&mut svg, width - 14.0, TOP_PX - 10.0, "faint end", "bubble");
    let chunks = several_chunks(panels);
    let mut top = TOP_PX;
    for panel in panels {
        lanes(&mut svg, panel, top, scale, chunks);
        top += panel_height(panel);
    }
    svg + "</svg>\n"
}

fn panel_height(panel: &Panel) -> f64 {
    let heading = if panel.heading.is_empty() { 0.0 } else { HEADING_PX };
    heading + LANE_PITCH_PX * panel.timeline.spans.len() as f64
}

/// Draws a panel's heading and the lanes of its ranks.
fn lanes(svg: &mut String, panel: &Panel, mut top: f64, scale: f64, chunks: bool) {
    let timeline = panel.timeline;
    if !panel.heading.is_empty() {
        let heading = format!("{}, {}", escape_xml(panel.heading), seconds(timeline.makespan));
        text(svg, LEFT_PX, top + 14.0, "heading", &heading);
        top += HEADING_PX;
    }
    let right = LEFT_PX + LANES_WIDTH_PX + RIGHT_PX - 14.0;
    for (rank, spans) in timeline.spans.iter().enumerate() {
        let y = top + LANE_PITCH_PX * rank as f64;
        text(svg, LEFT_PX - 12.0, y + 20.0, "end", &format!("stage {rank}"));
        let _ = writeln!(
            svg,
            "<rect class=\"idle\" x=\"{LEFT_PX}\" y=\"{y}\" width=\"{LANES_WIDTH_PX}\" height=\"{LANE_HEIGHT_PX}\" rx=\"2\"/>"
        );
        for span in spans {
            bar(svg, span, y, scale, chunks);
        }
        let bubble = timeline.bubble.get(rank).copied().unwrap_or(0.0) * 100.0;
        text(svg, right, y + 20.0, "end", &format!("{bubble:.1}%"));
    }
}

fn bar(svg: &mut String, span: &ActionSpan, y: f64, scale: f64, chunks: bool) {
    let length = (span.end - span.start) * scale;
    // A message is drawn at its sender only.
    if span.action.is_recv() || length.is_nan() || length <= 0.0 {
        return;
    }
    let x = LEFT_PX + span.start * scale;
    let strip = y + LANE_HEIGHT_PX + 2.0;
    let (y, height) = match span.action {
        action if action.is_send() => (strip, MESSAGE_HEIGHT_PX),
        action if action.is_between_replicas() => (strip + MESSAGE_HEIGHT_PX + 1.0, MESSAGE_HEIGHT_PX),
        _ => (y, LANE_HEIGHT_PX),
    };
    // If there is space, a gap of one pixel separates two bars.
    let drawn = if length > 3.0 { length - 1.0 } else { length };
    let _ = write!(
        svg,
        "<rect class=\"{}\" x=\"{x:.2}\" y=\"{y}\" width=\"{drawn:.2}\" height=\"{height}\" rx=\"{}\"><title>{}: {} to \
         {}</title></rect>",
        span.action.computation_type(),
        if length > 6.0 { 2 } else { 0 },
        span.action,
        seconds(span.start),
        seconds(span.end),
    );
    let number = span.action.item().map(|item| item.microbatch.to_string()).unwrap_or_default();
    let full = if chunks { label(span.action, true) } else { number.clone() };
    let candidates = [(LABEL_SIZES[0], &full), (LABEL_SIZES[0], &number), (LABEL_SIZES[1], &number)];
    let fits =
        |((_, digit, margin), content): &((&str, f64, f64), &String)| content.len() as f64 * digit + margin <= length;
    if let Some(((class, ..), content)) = candidates.into_iter().find(fits).filter(|_| height == LANE_HEIGHT_PX) {
        text(svg, x + drawn / 2.0, y + 19.0, class, content);
    }
    svg.push('\n');
}

/// Draws the legend of the visible kinds of actions.
fn legend(svg: &mut String, panels: &[Panel]) {
    let visible = |kind: &str| {
        let seen = |span: &&ActionSpan| span.action.computation_type() == kind && span.end > span.start;
        panels.iter().flat_map(|panel| panel.timeline.spans.iter().flatten()).find(seen).is_some()
    };
    let mut x = LEFT_PX;
    for (kind, label, _) in ACTION_STYLES.into_iter().filter(|(kind, ..)| visible(kind)) {
        let is_strip = kind.starts_with("SEND") || ["REDUCE", "GATHER"].contains(&kind);
        let height = if is_strip { MESSAGE_HEIGHT_PX } else { 11.0 };
        let y = 50.0 - height / 2.0;
        let _ =
            writeln!(svg, "<rect class=\"{kind}\" x=\"{x:.1}\" y=\"{y}\" width=\"14\" height=\"{height}\" rx=\"2\"/>");
        text(svg, x + 19.0, 54.0, "faint", label);
        x += 42.0 + label.len() as f64 * 6.0;
    }
}

/// Draws the time axis. Its ticks are at round times and divide the step into at most ten intervals.
fn axis(svg: &mut String, makespan: f64, scale: f64, bottom: f64) {
    let step = round_step(makespan / 10.0);
    let mut tick = 0;
    while scale > 0.0 && tick <= 10 && f64::from(tick) * step <= makespan * (1.0 + 1e-9) {
        let x = LEFT_PX + f64::from(tick) * step * scale;
        let (from, to) = (TOP_PX - 4.0, bottom);
        let _ = writeln!(svg, "<line class=\"tick\" x1=\"{x:.2}\" y1=\"{from}\" x2=\"{x:.2}\" y2=\"{to}\"/>");
        text(svg, x, bottom + 18.0, "faint middle", &seconds(f64::from(tick) * step));
        tick += 1;
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{content}</text>");
}

/// Returns `text` with entities in place of the characters that XML reserves.
pub fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;

    #[test]
    fn ticks_are_round_and_at_most_ten() {
        for makespan in [1e-6, 0.37, 1.0, 3.0, 7.2, 11.0, 99.0, 12345.0] {
            let step = round_step(makespan / 10.0);
            assert!((2.0..=10.0 + 1e-6).contains(&(makespan / step)), "{makespan}: {step}");
        }
    }

    #[test]
    fn every_drawn_kind_has_a_colour() {
        let item = crate::WorkItem { chunk: 0, microbatch: 0 };
        for action in [
            Action::Forward(item),
            Action::FullBackward(item),
            Action::BackwardInput(item),
            Action::BackwardWeight(item),
            Action::SendForward(item),
            Action::SendBackward(item),
            Action::Reduce(0),
            Action::ReduceTied,
            Action::Exchange,
            Action::Update,
            Action::Gather(0),
            Action::Snapshot,
        ] {
            assert!(ACTION_STYLES.iter().any(|(kind, ..)| *kind == action.computation_type()), "{action}");
        }
    }
}
