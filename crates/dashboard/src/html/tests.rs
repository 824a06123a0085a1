use std::sync::Arc;

use stagecoach_lifecycle::UnixMillis;

use super::super::metrics::Metrics;
use super::super::model::{Checkpoint, Checkpoints, FailureRow};
use super::super::step_timeline::{StageShare, StepTimeline};
use super::super::view::ViewQuery;
use super::*;

const HOSTILE: &str = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>";
const NOW: UnixMillis = UnixMillis(1_790_000_100_000);

fn model(steps: u64) -> PageModel {
    let mut metrics = Metrics::default();
    for step in 1..=steps {
        let loss = 3.0 + 5.0 * (-(step as f64) / 80.0).exp();
        let held_out = match step % 100 {
            0 => format!(",\"evaluationLoss\":{},\"evaluationSetLosses\":{{\"code\":{loss}}}", loss + 0.1),
            _ => String::new(),
        };
        metrics.add(
            format!(
                "{{\"step\":{step},\"loss\":{loss},\"gradientNorm\":0.5,\"learningRate\":0.001,\"tokensPerSecond\":6400.4,\
                 \"seconds\":0.25,\"bubble\":[0.1,0.3],\"peakBytes\":[104857600,209715200]{held_out}}}"
            )
            .as_bytes(),
        );
    }
    PageModel {
        job: HOSTILE.into(),
        now: NOW,
        status_text: format!("It runs: {HOSTILE}."),
        problems: vec![HOSTILE.into()],
        steps: Some(60_000),
        metrics: Arc::new(metrics),
        unigram_entropy: Some(6.0),
        timeline: Some(Arc::new(StepTimeline {
            step: 10,
            picture: None,
            stages: vec![StageShare {
                layers: vec![2, 1],
                computation: 0.7,
                bubble: 0.3,
                messages: 0.1,
                imbalance: 1.2,
            }],
            data_wait: Some(HOSTILE.into()),
            advice: Some(HOSTILE.into()),
            problem: Some(HOSTILE.into()),
        })),
        memory_limit: Some(1 << 28),
        checkpoints: Checkpoints {
            newest: vec![Checkpoint {
                step: 100,
                committed_at: Some(UnixMillis(NOW.0 - 200_000)),
                bytes: Some(5 << 20),
                problem: Some(HOSTILE.into()),
            }],
            older: 3,
        },
        failures: vec![FailureRow {
            failed_at: UnixMillis(NOW.0 - 3_000),
            cause: HOSTILE.into(),
            phases: vec![("started again", 0.4), ("first step", 2.0)],
            resumption: Some(HOSTILE.into()),
        }],
    }
}

fn view() -> View {
    View::from(&ViewQuery::default())
}

#[test]
fn characters_that_turn_text_or_drive_a_terminal_are_shown() {
    let part = html! { p { "a\u{202e}b\u{1b}[2J <i>\n" } };
    assert_eq!(text(part), "<p>a&lt;U+202E>b^[[2J &lt;i&gt;\n</p>");
}

#[test]
fn text_of_a_job_stays_text() {
    let page = page(&model(3), &view());
    assert!(page.matches("&lt;script&gt;").count() >= 9, "{page}");
    assert_eq!(page.matches("<script").count(), 1, "the page's own: {page}");
    assert!(!page.contains("<img") && !page.contains("alert(1)\""), "{page}");
}

#[test]
fn nothing_is_inline_and_every_address_is_relative() {
    let page = page(&model(150), &view());
    for forbidden in
        ["<style", "style=", "onclick", "onload", "javascript:", "http://", "https://", "href=\"/", "src=\"/"]
    {
        // this model has no timeline, because the markup of a timeline contains the SVG namespace, which looks like an
        // address
        let own = page.replace("&lt;", "").replace(HOSTILE, "");
        assert!(!own.contains(forbidden), "{forbidden} in {own}");
    }
}

#[test]
fn the_page_shows_what_the_model_has() {
    let page = page(&model(150), &view());
    for shown in [
        "3.7668",
        "after step 100",
        "held-out code",
        "6,400",
        "of 60,000",
        "20%",
        "78%",
        "1.20x",
        "2+1",
        "5.00 MiB",
        "3 min ago",
        "And 3 older",
        "started again 0.40 s, first step 2.00 s: 2.40 s in all",
    ] {
        assert!(page.contains(shown), "no {shown:?} in {page}");
    }
}

#[test]
fn the_wait_for_data_is_shown_if_it_was_measured() {
    let mut streaming = model(150);
    assert!(!page(&streaming, &view()).contains("wait for data"));
    let mut metrics = Metrics::default();
    metrics.add(b"{\"step\":1,\"seconds\":8,\"dataWaitSeconds\":2}");
    streaming.metrics = Arc::new(metrics);
    let page = page(&streaming, &view());
    let shown = "<dt>wait for data</dt><dd>25%</dd><dd class=\"note\">2.0s in the last steps</dd>";
    assert!(page.contains(shown), "{page}");
}

#[test]
fn an_empty_folder_has_a_page_too() {
    let empty = PageModel {
        metrics: Arc::default(),
        timeline: None,
        checkpoints: Checkpoints::default(),
        failures: Vec::new(),
        ..model(0)
    };
    let page = page(&empty, &view());
    for shown in ["Nothing was measured", "No step has a timeline yet", "None is committed yet", "No stage has failed"]
    {
        assert!(page.contains(shown), "no {shown:?} in {page}");
    }
}

#[test]
fn fifty_thousand_steps_have_a_page_of_bounded_bytes() {
    let bytes = page(&model(50_000), &view()).len();
    assert!(bytes < 200_000, "{bytes} bytes");
    let ids: Vec<&str> = fragments(&model(3), &view()).map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 9);
}
