//! The live page in a real browser.

use std::path::PathBuf;

use serde_json::json;
use stagecoach_tests::browser::Browser;
use stagecoach_tests::{Launched, TestJob, corpus, signal};

use super::{Serving, job, long_run, printed};

/// A JavaScript expression that lists the elements that extend beyond the window. The value is `page` if only the page
/// itself is wider than the window, and empty if the page fits.
pub(super) const OVERFLOW: &str = "document.documentElement.scrollWidth > document.documentElement.clientWidth ? \
                                   [...document.querySelectorAll('body *')].filter(e => \
                                   e.getBoundingClientRect().right > innerWidth + 1) .map(e => e.tagName + '#' + \
                                   e.id + '.' + e.className).join(' ') || 'page' : ''";

fn first_shown() -> &'static str {
    "Number(document.querySelector('#loss .chart').dataset.first)"
}

#[test]
#[ignore = "needs Chromium: run `make page`"]
fn a_browser_follows_a_run_zooms_by_keys_and_contacts_no_other_host() {
    let pictures = std::env::var_os("STAGECOACH_PICTURES").map(PathBuf::from);
    let workspace = corpus::workspace();
    let job = TestJob { layers: 6, global_batch_size: 24, microbatches: 8, ..job() };
    let mut launched = Launched::start(workspace.path(), &job, &["--set", "pipeline.memoryLimit=512Mi"]);
    let page = printed(&workspace.path().join("stdout"));
    launched.wait_for_step(150);
    signal(launched.stages()[1], libc::SIGKILL);
    launched.wait_for_restart(workspace.path());

    let mut browser = Browser::start();
    browser.resize(1100, 900, false);
    browser.prefer("light");
    browser.open(&page.url());
    browser.wait("the recovery", "document.querySelector('#recoveries').innerText.includes('first step')");
    let step = "Number(document.querySelector('#figures dd').innerText.replaceAll(',', ''))";
    let before = browser.value(step).as_u64().unwrap();
    browser.wait("later steps", &format!("{step} > {}", before + 20));
    // the chart fills the width of the window
    browser.wait(
        "a chart that is as wide as its container",
        "document.querySelector('#loss .chart').width.baseVal.value === document.querySelector('.plot').clientWidth",
    );

    // zoom with keys only
    browser.wait_for_focus("the chart", "document.activeElement.classList.contains('plot')");
    browser.press("+");
    browser.wait("half of the steps", &format!("location.search.includes('from=') && {} > 20", first_shown()));
    let half = browser.value(first_shown()).as_u64().unwrap();
    browser.press("ArrowLeft");
    browser.wait("earlier steps", &format!("location.search.includes('to=') && {} < {half}", first_shown()));
    let earlier = browser.value(first_shown()).as_u64().unwrap();
    browser.press("ArrowRight");
    browser.wait("later steps", &format!("{} > {earlier}", first_shown()));
    browser.press("0");
    browser.wait("all steps", &format!("location.search === '' && {} === 1", first_shown()));
    assert_eq!(browser.value("document.activeElement.classList.contains('plot')"), true, "updates keep the focus");
    // zoom with the mouse
    let place = browser.value(
        "(r => [r.left, r.top, r.width, r.height])(document.querySelector('#loss .chart').getBoundingClientRect())",
    );
    let at = |share: f64| {
        let number = |index: usize| place[index].as_f64().unwrap();
        (number(0) + share * number(2), number(1) + number(3) / 2.0)
    };
    browser.drag(at(0.3), at(0.6));
    browser.wait(
        "the part that was dragged over",
        &format!("/from=\\d+&to=\\d+/.test(location.search) && {} > 20", first_shown()),
    );
    // zoom with a link, which also works without a script
    browser.value("document.querySelector('[data-zoom=all]').focus()");
    browser.press("Enter");
    browser.wait("all steps", &format!("location.search === '' && {} === 1", first_shown()));

    let picture = |browser: &mut Browser, name: &str, width: u32, height: u64| {
        if let Some(folder) = &pictures {
            browser.value("document.activeElement.blur()");
            let all = browser.value("document.documentElement.scrollHeight").as_u64().unwrap();
            browser.screenshot(&folder.join(name), width, all.min(height));
        }
    };
    picture(&mut browser, "page.png", 1100, 4000);
    browser.prefer("dark");
    assert_eq!(browser.value("getComputedStyle(document.body).backgroundColor"), "rgb(13, 17, 23)");
    picture(&mut browser, "page-dark.png", 1100, 1000);
    for width in [390, 320, 768] {
        browser.resize(width, 844, true);
        browser.wait(
            "a chart that is as wide as its container",
            "document.querySelector('#loss .chart').width.baseVal.value === Math.max(280, \
             document.querySelector('.plot').clientWidth)",
        );
        assert_eq!(browser.value(OVERFLOW), "", "{width} pixels");
        if width == 390 {
            browser.prefer("light");
            picture(&mut browser, "page-phone.png", 390, 1000);
        }
    }
    let console_errors = browser.console_errors();
    assert!(console_errors.is_empty(), "{console_errors:#?}");
    let requests = browser.requests();
    assert!(requests.len() > 5 && requests.iter().all(|url| url.starts_with(&page.url())), "{requests:#?}");

    // the content security policy blocks inline scripts, other hosts and inline styles
    let inline = "(s => { s.textContent = 'window.inline = 1'; document.body.append(s); return window.inline ?? 0; \
                  })(document.createElement('script'))";
    assert_eq!(browser.value(inline), 0);
    assert_eq!(browser.value("fetch('http://127.0.0.2:1/').then(() => 'sent', error => error.name)"), "TypeError");
    let style = "(d => { d.innerHTML = '<p style=\"color: rgb(1, 2, 3)\">x</p>'; document.body.append(d); return \
                 getComputedStyle(d.firstChild).color; })(document.createElement('div'))";
    assert_ne!(browser.value(style), "rgb(1, 2, 3)");
    // the run ends, and the page reports that it has lost the connection
    launched.interrupt(workspace.path());
    browser.wait("the lost connection", "document.querySelector('#connection').innerText.startsWith('Not connected')");
}

#[test]
#[ignore = "needs Chromium: run `make page`"]
fn fifty_thousand_steps_are_a_small_document_and_a_page_without_a_script() {
    let workspace = tempfile::tempdir().unwrap();
    let folder = workspace.path().join("long");
    long_run(&folder, 50_000);
    let (_serving, page) = Serving::start(&folder, &workspace.path().join("address"));
    let mut browser = Browser::start();
    browser.resize(1100, 900, false);
    browser.open(&page.url());
    browser.wait("the chart", "document.querySelector('#loss .chart') !== null");
    browser.wait_for_focus("the chart", "document.activeElement.classList.contains('plot')");
    for _ in 0..12 {
        let before = browser.value(first_shown());
        browser.press("+");
        browser.wait("a closer look", &format!("{} > {before}", first_shown()));
        let elements = browser.value("document.querySelectorAll('*').length").as_u64().unwrap();
        assert!(elements < 1000, "{elements} elements");
    }
    assert_eq!(browser.console_errors(), Vec::<String>::new());

    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&format!("{}?from=100&to=300", page.url()));
    assert_eq!(browser.value(first_shown()), 100);
    let link = browser.value("document.querySelector('[data-zoom=in]').href");
    browser.open(link.as_str().unwrap());
    assert_eq!(browser.value(first_shown()), 150);
}
