//! Draws the page and its fragments. A script in the browser replaces the fragments while the job runs. The module does
//! no I/O. `maud` escapes all data from files as text. Only the timeline is inserted as markup: the crate `pipeline`
//! draws the timeline and escapes the texts in it.

mod parts;

use std::borrow::Cow;

use maud::{DOCTYPE, Markup, html};
use stagecoach_api::visible;
use stagecoach_display::percent;

use super::model::PageModel;
use super::view::{View, Zoom};

type Fragment = fn(&PageModel, &View) -> Markup;

/// The parts of the page that change. Each part has the id of the element that it fills.
const FRAGMENTS: [(&str, Fragment); 9] = [
    ("standing", parts::standing),
    ("figures", parts::figures),
    ("loss", parts::loss),
    ("speed", parts::speed),
    ("timeline", parts::timeline),
    ("stages", parts::stages),
    ("memory", parts::memory),
    ("checkpoints", parts::checkpoints),
    ("recoveries", parts::recoveries),
];

/// Returns the id and the HTML of each fragment.
pub(super) fn fragments(model: &PageModel, view: &View) -> impl Iterator<Item = (&'static str, String)> {
    FRAGMENTS.into_iter().map(|(id, fragment)| (id, text(fragment(model, view))))
}

/// Returns the whole page.
pub(super) fn page(model: &PageModel, view: &View) -> String {
    let fill = |id: &str| {
        let fragment = FRAGMENTS.into_iter().find(|(known, _)| *known == id);
        fragment.map(|(_, fragment)| fragment(model, view))
    };
    let filled = |id: &str| html! { div id=(id) data-fragment { @if let Some(content) = fill(id) { (content) } } };
    let newest = newest(model);
    let body = html! {
        a.skip href="#main" { "Skip to the job" }
        header {
            h1 { (model.job) }
            p #connection role="status" {}
            (filled("standing"))
        }
        main #main {
            (filled("figures"))
            section aria-labelledby="loss-heading" {
                h2 #loss-heading { "Loss" }
                nav.zoom aria-label="Steps that are shown" {
                    @for (zoom, name, label) in Zoom::ALL {
                        a href=(view.query_after(zoom, newest)) data-zoom=(name) { (label) }
                    }
                }
                figure.plot tabindex="0" aria-describedby="keys" { (filled("loss")) }
                p #keys.note {
                    "Drag over the chart, or focus it: " kbd { "+" } " and " kbd { "-" } " zoom, " kbd { "←" } " and "
                    kbd { "→" } " move, " kbd { "0" } " shows all steps."
                }
            }
            section aria-labelledby="speed-heading" {
                h2 #speed-heading { "Tokens a second" }
                figure.plot tabindex="0" aria-describedby="keys" { (filled("speed")) }
            }
            section aria-labelledby="timeline-heading" {
                h2 #timeline-heading { "The last measured step" }
                (scrolled("Shares of each stage", filled("stages")))
                figure.scroll tabindex="0" aria-label="Timeline of each stage" { (filled("timeline")) }
            }
            section aria-labelledby="memory-heading" { h2 #memory-heading { "Memory" } (scrolled("Memory", filled("memory"))) }
            section aria-labelledby="checkpoints-heading" {
                h2 #checkpoints-heading { "Checkpoints" }
                (scrolled("Checkpoints", filled("checkpoints")))
            }
            section aria-labelledby="recoveries-heading" {
                h2 #recoveries-heading { "Failures and recoveries" }
                (scrolled("Failures and recoveries", filled("recoveries")))
            }
        }
    };
    document(&model.job, "page.js", body)
}

/// Returns a document with the style of the pages and one script. The addresses in the document are relative, so that
/// each link keeps the token in the page's address.
pub(super) fn document(title: &str, script: &str, body: Markup) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " - Stagecoach" }
                link rel="icon" href="icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="page.css";
                script src=(script) defer {}
            }
            body { (body) }
        }
    };
    text(document)
}

/// Returns the HTML of a part of a page. The part may contain names and messages from outside the program, so
/// [`visible`] replaces invisible characters.
pub(super) fn text(part: Markup) -> String {
    let html = part.into_string();
    match visible(&html) {
        Cow::Borrowed(_) => html,
        // `visible` writes an invisible character as `<U+202E>`. No element begins with `<U+`, so each match is text.
        Cow::Owned(shown) => shown.replace("<U+", "&lt;U+"),
    }
}

/// Returns an entry of a list with the CSS class `figures`: a value with its name and a note.
pub(super) fn figure(name: &str, value: &str, note: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } @if !note.is_empty() { dd.note { (note) } } } }
}

/// Returns a bar that shows the memory of a stage, in bytes. The full bar stands for the memory limit, or for the bytes
/// of the largest stage if there is no limit.
pub(super) fn memory_bar(stage: usize, bytes: u64, limit: Option<u64>, largest: u64) -> Markup {
    let full = limit.unwrap_or(largest).max(1);
    html! {
        meter min="0" max=(full) high=[limit.map(|limit| limit / 10 * 9)] value=(bytes.min(full)) aria-label={ "Stage " (stage) } {}
        @if limit.is_some() { " " (percent(bytes as f64 / full as f64)) }
    }
}

/// Wraps content that may be wider than a phone's screen. The content scrolls separately from the page, and the
/// keyboard can scroll it too.
pub(super) fn scrolled(label: &str, content: Markup) -> Markup {
    html! { div.scroll tabindex="0" role="group" aria-label=(label) { (content) } }
}

fn newest(model: &PageModel) -> u64 {
    model.metrics.last.as_ref().map_or(0, |line| line.step)
}

#[cfg(test)]
mod tests;
