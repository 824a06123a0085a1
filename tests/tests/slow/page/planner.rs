//! The planner's page shows the output of `stagecoach plan`. In a real browser, the user changes the plan with the
//! page's fields and with keys.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use stagecoach_tests::browser::Browser;
use stagecoach_tests::page_reader::PageAddress;
use stagecoach_tests::stagecoach;
use tempfile::TempDir;

use super::Serving;
use super::browser::OVERFLOW;

const LIMIT: [&str; 2] = ["--set", "pipeline.memoryLimit=512Mi"];

/// Returns the command `stagecoach plan` for the sample job with these arguments.
fn plan(workspace: &Path, arguments: &[&str]) -> Command {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/samples/shakespeare.yaml");
    let mut command = Command::new(stagecoach());
    command.arg("plan").arg(sample).arg("--workspace").arg(workspace).args(LIMIT).args(arguments);
    command
}

/// Returns the output of `stagecoach plan`.
fn printed(workspace: &Path, arguments: &[&str]) -> String {
    let output = plan(workspace, arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the bubble of a plan from its output, such as `12.3%`.
fn bubble(printed: &str) -> String {
    let (_, rest) = printed.split_once(", bubble ").unwrap();
    rest.lines().next().unwrap().to_owned()
}

fn serve() -> (Serving, PageAddress, TempDir) {
    let workspace = tempfile::tempdir().unwrap();
    let log = workspace.path().join("address");
    let (serving, page) = Serving::run(&mut plan(workspace.path(), &["--page"]), &log);
    (serving, page, workspace)
}

#[test]
fn planner_shows_what_the_command_says() {
    let (_serving, page, workspace) = serve();
    for (query, arguments) in [
        ("", vec![]),
        ("?stages=2", vec!["--stages", "2"]),
        (
            "?schedule=GPipe&microbatches=16",
            vec!["--set", "pipeline.schedule={type: GPipe}", "--set", "training.microbatches=16"],
        ),
        ("?stage=1&speed=0.5", vec!["--speeds", "1,0.5,1"]),
    ] {
        let (head, body) = page.get(&format!("{}{query}", page.path));
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("form-action 'self';"), "{query}: {head}");
        let printed = printed(workspace.path(), &arguments);
        let shown = format!("<dt>bubble</dt><dd>{}</dd>", bubble(&printed));
        assert!(body.contains(&shown), "{query}: no {shown} in {body}");
        for note in printed.lines().filter_map(|line| line.strip_prefix("note: ")) {
            assert!(body.contains(note), "{query}: no {note} in {body}");
        }
    }
    // the page still shows a plan if a field occurs twice in the address
    assert!(page.get(&format!("{}?stages=2&stages=3", page.path)).0.starts_with("HTTP/1.1 200"));
    assert!(page.get("/plan").0.starts_with("HTTP/1.1 404"));
}

#[test]
fn planner_page_is_instead_of_files() {
    let workspace = tempfile::tempdir().unwrap();
    let refused = plan(workspace.path(), &["--page", "--svg", "plan.svg"]).output().unwrap();
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && reported.contains("cannot be used with"), "{reported}");
}

fn field(name: &str) -> String {
    format!("document.activeElement.name === '{name}'")
}

const STAGES: &str = "document.querySelectorAll('#plan meter').length";

#[test]
#[ignore = "needs Chromium: run `make page`"]
fn the_planner_follows_the_keys_and_contacts_no_other_host() {
    let pictures = std::env::var_os("STAGECOACH_PICTURES").map(PathBuf::from);
    let (_serving, page, workspace) = serve();
    let mut browser = Browser::start();
    browser.resize(1100, 900, false);
    browser.prefer("light");
    browser.open(&page.url());
    browser.wait("the plan of the job", &format!("{STAGES} === 3"));

    // decrease the number of stages, and compare the lines for the job file
    browser.wait_for_focus("the stages", &field("stages"));
    browser.press("ArrowDown");
    browser.wait("two stages", &format!("{STAGES} === 2"));
    browser.wait("the lines", "document.querySelector('#yaml').innerText.trim() === 'spec:\\n  stages: 2'");
    assert_eq!(browser.value(&field("stages")), json!(true), "what changes keeps the focus");
    // choose another schedule, which is impossible with one chunk a stage and possible with two
    browser.wait_for_focus("the schedule", &field("schedule"));
    let schedule = "document.querySelector('[name=schedule]').value";
    for _ in 0..5 {
        if browser.value(schedule) == json!("ZBVZeroBubble") {
            break;
        }
        browser.press("ArrowDown");
    }
    assert_eq!(browser.value(schedule), json!("ZBVZeroBubble"));
    browser.wait(
        "the sentence about virtualStages",
        "document.querySelector('#plan .problem')?.innerText.endsWith('set it to 2.')",
    );
    browser.wait_for_focus("the chunks", &field("virtualStages"));
    browser.press("ArrowUp");
    browser.wait("the plan with two chunks a stage", &format!("{STAGES} === 2"));
    browser.wait("the lines", "document.querySelector('#yaml').innerText.includes('schedule: {type: ZBVZeroBubble}')");
    let set =
        ["--stages", "2", "--set", "pipeline.schedule={type: ZBVZeroBubble}", "--set", "pipeline.virtualStages=2"];
    let expected = bubble(&printed(workspace.path(), &set));
    let shown = "[...document.querySelectorAll('#plan dt')].find(e => e.innerText === 'bubble').nextSibling.innerText";
    assert_eq!(browser.value(shown), json!(expected));
    // the table of the schedules that `Auto` compares is updated, and marks the current schedule
    browser.wait(
        "what Auto takes",
        "document.querySelector('#auto').ariaBusy === null && document.querySelector('#auto \
         [aria-current]')?.innerText.startsWith('ZBVZeroBubble')",
    );
    // a slow stage makes the step longer
    browser.wait_for_focus("the speed", &field("speed"));
    browser.value("document.activeElement.select()");
    "0.5".chars().for_each(|key| browser.press(&key.to_string()));
    let longer = "document.querySelector('#plan dd.note').innerText.includes('longer than the job')";
    browser.wait("a longer step", &format!("location.search.includes('speed=0.5') && {longer}"));
    // loading the address again shows the same plan
    let address = browser.value("location.href");
    let step = browser.value("document.querySelector('#plan dd').innerText");
    browser.open(address.as_str().unwrap());
    assert_eq!(browser.value("document.querySelector('#plan dd').innerText"), step);
    assert_eq!(browser.value(schedule), json!("ZBVZeroBubble"));

    browser
        .open(&format!("{}?stages=4&microbatches=16&schedule=InterleavedZeroBubble&recompute=Selective", page.url()));
    let picture = |browser: &mut Browser, name: &str, width: u32| {
        if let Some(folder) = &pictures {
            let all = browser.value("document.documentElement.scrollHeight").as_u64().unwrap();
            browser.screenshot(&folder.join(name), width, all);
        }
    };
    picture(&mut browser, "planner.png", 1100);
    browser.prefer("dark");
    assert_eq!(
        browser.value("getComputedStyle(document.querySelector('input')).backgroundColor"),
        json!("rgb(22, 27, 34)")
    );
    picture(&mut browser, "planner-dark.png", 1100);
    for width in [390, 320, 768] {
        browser.resize(width, 844, true);
        assert_eq!(browser.value(OVERFLOW), json!(""), "{width} pixels");
        if width == 390 {
            browser.prefer("light");
            picture(&mut browser, "planner-phone.png", 390);
        }
    }
    let console_errors = browser.console_errors();
    assert!(console_errors.is_empty(), "{console_errors:#?}");
    let requests = browser.requests();
    assert!(requests.len() > 10 && requests.iter().all(|url| url.starts_with(&page.url())), "{requests:#?}");
}

#[test]
#[ignore = "needs Chromium: run `make page`"]
fn planner_works_without_a_script_and_says_when_it_is_gone() {
    let (serving, page, _workspace) = serve();
    let mut browser = Browser::start();
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&page.url());
    browser.wait_for_focus("the stages", &field("stages"));
    browser.press("ArrowDown");
    assert_eq!(browser.value(STAGES), json!(3), "nothing changes before it is sent");
    browser.press("Enter");
    browser.wait("two stages", &format!("location.search.includes('stages=2') && {STAGES} === 2"));
    assert!(browser.value("document.querySelectorAll('#auto tbody tr').length").as_u64().unwrap() > 3);
    assert_eq!(browser.console_errors(), Vec::<String>::new());

    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": false}));
    browser.open(&page.url());
    drop(serving);
    browser.wait_for_focus("the stages", &field("stages"));
    browser.press("ArrowUp");
    browser.wait("the lost connection", "document.querySelector('#status').innerText.startsWith('Not connected')");
}
