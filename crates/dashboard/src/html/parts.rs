//! Draws the parts of the job's page that change while the job runs.

use indicatif::{HumanBytes, HumanCount};
use maud::{Markup, PreEscaped, html};
use stagecoach_display::{duration, nats, percent};
use stagecoach_lifecycle::UnixMillis;

use super::super::chart::{Chart, other_class};
use super::super::model::{Checkpoint, FailureRow, PageModel};
use super::super::step_timeline::{StageShare, StepTimeline};
use super::super::view::{View, Zoom};
use super::{figure, memory_bar, newest};

pub(super) fn standing(model: &PageModel, _: &View) -> Markup {
    html! {
        p { (model.status_text) }
        @for problem in &model.problems { p.problem { (problem) } }
    }
}

pub(super) fn figures(model: &PageModel, _: &View) -> Markup {
    let metrics = &model.metrics;
    let Some(last) = &metrics.last else { return html! {} };
    let left = model.steps.map(|steps| steps.saturating_sub(last.step)).filter(|left| *left > 0);
    let remaining = left.zip(metrics.seconds_per_step()).map(|(left, seconds)| duration(left as f64 * seconds));
    let bubble = (!last.bubble.is_empty()).then(|| last.bubble.iter().sum::<f64>() / last.bubble.len() as f64);
    html! {
        dl.figures {
            (figure("step", &HumanCount(last.step).to_string(), &model.steps.map_or_else(String::new, |n| format!("of {}", HumanCount(n)))))
            (figure("loss", &nats(last.loss), "nats per token"))
            @if let Some((step, loss)) = metrics.last_held_out {
                (figure("held-out loss", &nats(Some(loss)), &format!("after step {}", HumanCount(step))))
            }
            @if let Some(entropy) = model.unigram_entropy {
                (figure("unigram entropy", &nats(Some(entropy)), "of the held-out tokens"))
            }
            (figure("tokens a second", &HumanCount(last.tokens_per_second.max(0.0).round() as u64).to_string(), ""))
            @if let Some(seconds) = metrics.seconds_per_step() {
                (figure("time of a step", &format!("{seconds:.3} s"), &remaining.map_or_else(String::new, |left| format!("{left} \
                                                                                                                          to go"))))
            }
            @if let Some(bubble) = bubble { (figure("bubble", &percent(bubble), "mean of all stages")) }
            @if let Some(wait) = metrics.data_wait() {
                @let note = format!("{} in the last steps", duration(wait.seconds));
                (figure("wait for data", &percent(wait.share), &note))
            }
            (figure("learning rate", &format!("{:.2e}", last.learning_rate), ""))
            @if let Some(norm) = last.gradient_norm { (figure("gradient norm", &format!("{norm:.3}"), "before clipping")) }
            @if metrics.skipped > 0 { (figure("updates skipped", &HumanCount(metrics.skipped).to_string(), "")) }
        }
    }
}

/// Returns the name of each zoom, and the URL query of the view after the zoom. The page's script uses the queries.
fn zooms(view: &View, newest: u64) -> Vec<(&'static str, String)> {
    Zoom::ALL.iter().map(|(zoom, name, _)| (*name, view.query_after(*zoom, newest))).collect()
}

pub(super) fn loss(model: &PageModel, view: &View) -> Markup {
    let newest = newest(model);
    let (first, last) = view.range(newest);
    let columns = model.metrics.loss.columns(first, last, view.width as usize / 2);
    let points = model.metrics.held_out.columns(first, last, view.width as usize / 8);
    let (sources, sets) = (&model.metrics.sources, &model.metrics.held_out_sets);
    let curves = sources.values().chain(sets.values());
    let others: Vec<_> = curves.map(|loss| loss.columns(first, last, view.width as usize / 8)).collect();
    let names = sources.keys().cloned().chain(sets.keys().map(|set| format!("held-out {set}")));
    let range = format!("Steps {} to {}", HumanCount(first), HumanCount(last));
    let description = format!("Training and held-out loss by step. {range}.");
    let zooms = zooms(view, newest);
    let chart = Chart {
        description: &description,
        steps: (first, last),
        width: view.width,
        columns: &columns,
        others: &others,
        points: &points,
        reference: model.unigram_entropy,
        from_zero: false,
        zooms: &zooms,
    };
    html! {
        (chart.draw())
        figcaption {
            span { (range) ", nats per token:" }
            span.key.line { "training loss, its range shaded" }
            @for (index, name) in names.enumerate() {
                span class={ "key " (other_class(index)) } { (name) }
            }
            @if !points.is_empty() { span.key.point { "held-out loss" } }
            @if model.unigram_entropy.is_some() { span.key.reference { "unigram entropy" } }
        }
    }
}

pub(super) fn speed(model: &PageModel, view: &View) -> Markup {
    let newest = newest(model);
    let (first, last) = view.range(newest);
    let columns = model.metrics.speed.columns(first, last, view.width as usize / 2);
    let zooms = zooms(view, newest);
    let chart = Chart {
        description: "Target tokens a second by step",
        steps: (first, last),
        width: view.width,
        columns: &columns,
        others: &[],
        points: &[],
        reference: None,
        from_zero: true,
        zooms: &zooms,
    };
    chart.draw()
}

pub(super) fn timeline(model: &PageModel, _: &View) -> Markup {
    let picture = model.timeline.as_ref().and_then(|timeline| timeline.picture.as_deref());
    html! { @if let Some(picture) = picture { div.timeline { (PreEscaped(picture)) } } }
}

pub(super) fn stages(model: &PageModel, _: &View) -> Markup {
    let Some(timeline) = &model.timeline else {
        return html! { p.empty { "No step has a timeline yet: every tenth step has one." } };
    };
    let StepTimeline { step, picture, stages, data_wait, advice, problem } = &**timeline;
    let row = |(rank, share): (usize, &StageShare)| {
        let layers: Vec<String> = share.layers.iter().map(ToString::to_string).collect();
        let shares = [share.computation, share.bubble, share.messages];
        html! {
            tr {
                th scope="row" { (rank) }
                td { (layers.join("+")) }
                @for share in shares { td { (format!("{:.1} %", 100.0 * share)) } }
                td { (format!("{:.2}x", share.imbalance)) }
            }
        }
    };
    html! {
        @if let Some(problem) = problem { p.problem { "The timeline of step " (step) ": " (problem) "." } }
        @if let Some(advice) = advice { p.advice { (advice) "." } }
        @if !stages.is_empty() {
            table {
                caption { "Step " (HumanCount(*step)) ": the measured timeline, above a simulation with the measured \
                                                       costs" }
                thead { tr { @for name in ["stage", "layers", "computation", "bubble", "exposed communication", "imbalance"] { th scope="col" { (name) } } } }
                tbody { @for row in stages.iter().enumerate().map(row) { (row) } }
            }
            @if let Some(data_wait) = data_wait { p.note { (data_wait) "." } }
            @if picture.is_none() { p.note { "Too many actions to draw here: `stagecoach timeline --svg FILE` draws \
                                              them." } }
        }
    }
}

pub(super) fn memory(model: &PageModel, _: &View) -> Markup {
    let peaks = model.metrics.last.as_ref().map_or(&[][..], |line| &line.peak_bytes);
    if peaks.is_empty() {
        return html! { p.empty { "Nothing is measured yet." } };
    }
    let largest = peaks.iter().copied().max().unwrap_or(0);
    html! {
        table {
            thead { tr { th scope="col" { "stage" } th scope="col" { "peak" } th scope="col" { "limit" } th scope="col" { "share" } } }
            tbody {
                @for (stage, peak) in peaks.iter().enumerate() {
                    tr {
                        th scope="row" { (stage) }
                        td { (HumanBytes(*peak)) }
                        td { @match model.memory_limit { Some(limit) => (HumanBytes(limit)), None => "none" } }
                        td { (memory_bar(stage, *peak, model.memory_limit, largest)) }
                    }
                }
            }
        }
        p.note {
            "The peak resident memory of each stage's process. "
            @if model.memory_limit.is_none() { "spec.pipeline.memoryLimit is not set: bars are relative to the \
                                                largest." }
        }
    }
}

pub(super) fn checkpoints(model: &PageModel, _: &View) -> Markup {
    let found = &model.checkpoints;
    if found.newest.is_empty() {
        return html! { p.empty { "None is committed yet." } };
    }
    let row = |checkpoint: &Checkpoint| {
        html! {
            tr {
                th scope="row" { (HumanCount(checkpoint.step)) }
                td { @if let Some(at) = checkpoint.committed_at { (time(at)) ", " (age(at, model.now)) } @else { "-" } }
                td { (checkpoint.bytes.map_or_else(|| "-".into(), |bytes| HumanBytes(bytes).to_string())) }
                td { @match &checkpoint.problem {
                    None => "manifest and sizes match",
                    Some(problem) => span.problem { (problem) },
                } }
            }
        }
    };
    html! {
        table {
            thead { tr { @for name in ["step", "committed", "size", "verified"] { th scope="col" { (name) } } } }
            tbody { @for checkpoint in &found.newest { (row(checkpoint)) } }
        }
        p.note {
            @if found.older > 0 { "And " (found.older) " older. " }
            "Every byte is compared with its hash when a run loads it, and by `stagecoach checkpoint verify`."
        }
    }
}

pub(super) fn recoveries(model: &PageModel, _: &View) -> Markup {
    if model.failures.is_empty() {
        return html! { p.empty { "No stage has failed." } };
    }
    let row = |failure: &FailureRow| {
        let phases: Vec<String> =
            failure.phases.iter().map(|(name, seconds)| format!("{name} {}", precise(*seconds))).collect();
        html! {
            tr {
                th.text scope="row" { (time(failure.failed_at)) ", " (age(failure.failed_at, model.now)) }
                td.text { (failure.cause) }
                td.text {
                    @if phases.is_empty() { "no stage was started again" } @else { (phases.join(", ")) ": " (precise(failure.seconds())) " in all" }
                }
                td.text { (failure.resumption.as_deref().unwrap_or("-")) }
            }
        }
    };
    html! {
        table {
            thead { tr { @for name in ["when", "root cause", "phases", "training"] { th scope="col" { (name) } } } }
            tbody { @for failure in &model.failures { (row(failure)) } }
        }
    }
}

/// Returns the seconds of a phase as text. The text has two decimals if the phase took less than 10 seconds.
fn precise(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.2} s") } else { duration(seconds) }
}

/// Returns the date and time in UTC, to the second.
fn time(at: UnixMillis) -> Markup {
    let timestamp = i64::try_from(at.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    let text = timestamp.map(|time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    html! { time { (text.as_deref().unwrap_or("-")) } }
}

/// Returns the age as text in its largest unit only, so that the text rarely changes.
fn age(at: UnixMillis, now: UnixMillis) -> String {
    let seconds = now.0.saturating_sub(at.0) / 1000;
    match seconds {
        0..60 => "less than a minute ago".into(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
