//! Draws the planner's page and its parts. `maud` escapes all data from the job or the query as text. Only the timeline
//! is inserted as markup: the crate `pipeline` draws the timeline and escapes the texts in it.

use std::ops::RangeInclusive;

use indicatif::{HumanBytes, HumanCount};
use maud::{Markup, PreEscaped, html};
use stagecoach_api::contract::MAX_STAGES;
use stagecoach_pipeline::{PartitionError, seconds};
use stagecoach_planner::{Alternative, PipelineLayout, PlannedStage};

use super::super::html::{document, figure, memory_bar, scrolled, text};
use super::super::step_timeline::picture;
use super::choice::{BANDWIDTHS, Choice, PlannerQuery, RECOMPUTES, SPEEDS};
use super::model::{Planned, Planner, PlannerModel, SimulatedStep};

/// The largest number of bars in a picture. The number is larger than on the live page, because a user of the planner
/// expects to wait for the picture.
const MAX_BARS: usize = 5000;

/// Returns the whole page.
pub(super) fn page(planner: &Planner, query: &PlannerQuery) -> String {
    let model = planner.model(query);
    let body = html! {
        a.skip href="#main" { "Skip to the plan" }
        header {
            h1 { (planner.name()) }
            p { "The simulated time and memory of a step of this job. This page does not change the job." }
        }
        (form(planner, &model.fields))
        p #status.note role="status" {}
        main #main {
            div #plan { (planned(planner, &model)) }
            section aria-labelledby="auto-heading" {
                h2 #auto-heading { "The choice of Auto" }
                div #auto { (chosen_by_auto(planner, query)) }
            }
        }
    };
    document(planner.name(), "planner.js", body)
}

/// Returns the part of the page that depends on the choice.
pub(super) fn plan(planner: &Planner, query: &PlannerQuery) -> String {
    text(planned(planner, &planner.model(query)))
}

/// Returns the part of the page that shows the choice of the schedule `Auto`, which selects the fastest schedule. The
/// page's script requests this part only after a pause in the user's changes.
pub(super) fn auto(planner: &Planner, query: &PlannerQuery) -> String {
    text(chosen_by_auto(planner, query))
}

fn form(planner: &Planner, fields: &PlannerQuery) -> Markup {
    let number = |label: &str, name: &str, value: &str, min: f64, max: Option<f64>, step: &str| {
        html! {
            label {
                span { (label) }
                input type="number" name=(name) value=(value) min=(min) max=[max] step=(step) placeholder="as it is";
            }
        }
    };
    let within = |label: &str, name: &str, value: &str, range: RangeInclusive<f64>| {
        number(label, name, value, *range.start(), Some(*range.end()), "any")
    };
    let choices = |label: &str, name: &str, value: &str, all: &[&str]| {
        html! {
            label {
                span { (label) }
                select name=(name) { @for choice in all { option value=(choice) selected[*choice == value] { (choice) } } }
            }
        }
    };
    let schedules: Vec<&str> = planner.own.schedules().iter().map(|schedule| schedule.name()).collect();
    html! {
        form method="get" autocomplete="off" {
            fieldset {
                legend { "The job" }
                (number("stages", "stages", &fields.stages, 1.0, Some(MAX_STAGES.into()), "1"))
                (number("microbatches", "microbatches", &fields.microbatches, 1.0, None, "1"))
                (choices("schedule", "schedule", &fields.schedule, &schedules))
                (number("chunks a stage", "virtualStages", &fields.virtual_stages, 1.0, Some(64.0), "1"))
                (choices("recompute", "recompute", &fields.recompute, &RECOMPUTES.map(|recompute| recompute.as_str())))
            }
            fieldset {
                legend { "Assumed machines" }
                (number("stage", "stage", &fields.stage, 0.0, None, "1"))
                (within("speed of this stage, times the known speed", "speed", &fields.speed, SPEEDS))
                (within("bandwidth of every link, in Gbit/s", "bandwidth", &fields.bandwidth, BANDWIDTHS))
            }
            p {
                button { "Simulate" }
                a href="?" { "The job as it is" }
            }
        }
    }
}

fn planned(planner: &Planner, model: &PlannerModel) -> Markup {
    let planned = match &model.planned {
        Ok(planned) => planned,
        Err(sentence) => return html! { p.problem { (sentence) "." } },
    };
    let Planned { choice, layout } = planned;
    let title = format!("{} over {} stages, simulated", layout.schedule.name, choice.stages);
    html! {
        (figures(planner, planned))
        @for note in &layout.notes { p.note { (note) "." } }
        section aria-labelledby="timeline-heading" {
            h2 #timeline-heading { "Timeline" }
            figure.scroll tabindex="0" aria-label="Timeline of each stage" {
                @match picture(&[(&layout.timeline).into()], &title, MAX_BARS) {
                    Some(picture) => div.timeline { (PreEscaped(picture)) },
                    None => p.note { "Too many actions to draw here: `stagecoach plan --svg FILE` draws them." },
                }
            }
        }
        section aria-labelledby="stages-heading" {
            h2 #stages-heading { "Partition and memory" }
            (scrolled("Partition and memory", stages(layout, planner.memory_limit())))
        }
        section aria-labelledby="yaml-heading" {
            h2 #yaml-heading { "Write this into the job" }
            (yaml(planner, choice))
        }
    }
}

/// Returns the figures of the planned step, compared with the step of the unchanged job.
fn figures(planner: &Planner, Planned { choice, layout }: &Planned) -> Markup {
    let step = SimulatedStep::of(layout);
    let is_other = *choice != planner.own;
    let own = planner.own_step.as_ref().ok().filter(|_| is_other);
    let beside =
        |text: fn(&SimulatedStep) -> String| own.map_or_else(String::new, |own| format!("the job: {}", text(own)));
    let rate = HumanCount((planner.tokens() as f64 / step.seconds).round() as u64).to_string();
    html! {
        dl.figures {
            (figure("time of a step", &seconds(step.seconds), &own.map_or_else(String::new, |own| difference(&step, own))))
            (figure("tokens a second", &rate, ""))
            (figure("bubble", &tenths(step.bubble), &beside(|own| tenths(own.bubble))))
            (figure("largest stage", &HumanBytes(step.bytes).to_string(), &beside(|own| HumanBytes(own.bytes).to_string())))
            @if choice.stages > 1 {
                (figure("a message", &HumanBytes(layout.cost.boundary_bytes).to_string(), &format!("takes {}", seconds(layout.costs.link_seconds))))
            }
        }
        @if let (true, Err(sentence)) = (is_other, &planner.own_step) { p.note { "The job as it is can't be planned: " (sentence) "." } }
    }
}

/// Describes the difference in duration between a step and the step of the unchanged job.
fn difference(step: &SimulatedStep, own: &SimulatedStep) -> String {
    let percent = 100.0 * (step.seconds / own.seconds - 1.0);
    match format!("{:.1}", percent.abs()).as_str() {
        "0.0" => "as long as the job's".to_owned(),
        digits => {
            let longer = if percent > 0.0 { "longer" } else { "shorter" };
            format!("{digits}% {longer} than the job's {}", seconds(own.seconds))
        }
    }
}

/// Returns a share from 0 to 1 in percent, to a tenth of a percent.
fn tenths(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

fn stages(layout: &PipelineLayout, limit: Option<u64>) -> Markup {
    let largest = layout.largest_stage();
    let row = |(rank, stage): (usize, PlannedStage)| {
        html! {
            tr {
                th scope="row" { (rank) }
                td { (stage.layers_text()) }
                td { (tenths(stage.work)) }
                td { (stage.in_flight) }
                td { (tenths(stage.bubble)) }
                td { (HumanBytes(stage.bytes)) }
                td { (memory_bar(rank, stage.bytes, limit, largest)) }
            }
        }
    };
    let bars = match limit {
        Some(limit) => format!("of {}", HumanBytes(limit)),
        None => "share of the largest stage: no memoryLimit is set".to_owned(),
    };
    html! {
        table {
            thead { tr { @for name in ["stage", "layers", "work", "in flight", "bubble", "memory", &bars] { th scope="col" { (name) } } } }
            tbody { @for row in layout.stages().enumerate().map(row) { (row) } }
        }
    }
}

fn yaml(planner: &Planner, choice: &Choice) -> Markup {
    let Some(lines) = choice.yaml(&planner.own) else {
        return html! { p.empty { "No change: the job already has these values." } };
    };
    html! {
        pre #yaml tabindex="0" aria-labelledby="yaml-heading" { (lines) }
        p { button type="button" data-copy="yaml" { "Copy" } }
        @if choice.microbatches != planner.own.microbatches {
            p.note { "The number of microbatches affects the losses and weights of the job, so a job that has begun \
                      keeps its number." }
        }
    }
}

fn chosen_by_auto(planner: &Planner, query: &PlannerQuery) -> Markup {
    let (Planned { choice, layout }, current) = match (planner.auto(query), planner.choice(query)) {
        (Ok(planned), Ok(current)) => (planned, current),
        (Err(sentence), _) | (_, Err(sentence)) => return html! { p.empty { (sentence) "." } },
    };
    let row = |alternative: &Alternative| {
        let Alternative { schedule, chunks_per_stage, recompute, step } = alternative;
        let named = planner.own.schedules().into_iter().find(|known| known.name() == schedule);
        let named = Choice {
            schedule: named.unwrap_or_else(|| choice.schedule.clone()),
            virtual_stages: u32::try_from(*chunks_per_stage).unwrap_or(u32::MAX),
            recompute: *recompute,
            ..choice.clone()
        };
        let (step, bytes) = match step {
            Ok((step, bytes)) => (seconds(*step), HumanBytes(*bytes).to_string()),
            Err(PartitionError::Memory { needed_bytes, .. }) => {
                ("does not fit".to_owned(), HumanBytes(*needed_bytes).to_string())
            }
            Err(_) => ("impossible".to_owned(), String::new()),
        };
        html! {
            tr aria-current=[(named == current).then_some("true")] {
                th scope="row" { a href=(named.address()) { (schedule) ", " (chunks_per_stage) " a stage" } }
                td { (recompute) }
                td { (step) }
                td { (bytes) }
            }
        }
    };
    let table = html! {
        table {
            caption { "The schedules with these stages, microbatches and machines, the fastest first. Auto takes the \
                       first row." }
            thead { tr { @for name in ["schedule, chunks", "recompute", "time of a step", "largest stage"] { th scope="col" { (name) } } } }
            tbody { @for alternative in layout.ranked_alternatives() { (row(alternative)) } }
        }
    };
    scrolled("What Auto chooses from", table)
}
