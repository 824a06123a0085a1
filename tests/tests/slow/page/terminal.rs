//! Takes the documentation's pictures of commands and their output in a terminal.

use std::path::{Path, PathBuf};
use std::process::Command;

use stagecoach_tests::browser::Browser;
use stagecoach_tests::{Launched, TestJob, corpus, run_command, signal, stagecoach};

const WIDTH: u32 = 1100;
const STYLE: &str = "body { margin: 0; padding: 16px; background: #0d1117; color: #e6edf3 }
pre { margin: 0; font: 13px/1.5 'DejaVu Sans Mono', monospace; white-space: pre-wrap; overflow-wrap: anywhere } b { color: #7ee787 }";

#[test]
#[ignore = "needs Chromium: run `make page`"]
fn commands_print_what_their_pictures_show() {
    let pictures = std::env::var_os("STAGECOACH_PICTURES").map(PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    // the folder has the name that the documentation's commands use
    let workspace = folder.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    corpus::write(&workspace);
    let extra = "  checkpoint: {everySteps: 100}\n  restart: {backoff: {initialSeconds: 0}}\n".to_owned();
    let job =
        TestJob { name: "hamlet".into(), layers: 6, steps: 400, decay_steps: Some(400), extra, ..TestJob::default() };
    let again = TestJob { name: "again".into(), stages: 2, ..job.clone() };
    let mut launched = Launched::start(&workspace, &job, &[]);
    launched.wait_for_step(130);
    signal(launched.stages()[1], libc::SIGKILL);
    launched.finish(&workspace).hashes();
    let mut launched = Launched::start(&workspace, &again, &["--set", "training.seed=43"]);
    launched.wait_for_step(20);
    let top = printed(folder.path(), "top");
    launched.finish(&workspace).hashes();

    let mut browser = Browser::start();
    browser.resize(WIDTH, 400, false);
    let commands = [
        ("top", "top", "hamlet"),
        ("why", "why workspace/hamlet", "stage 1"),
        ("replay", "replay workspace/hamlet --step 357 --until 360", "equal: "),
        ("audit", "audit workspace/hamlet --all", ": equal"),
        ("diff", "diff workspace/hamlet workspace/again", "the runs diverge at step 1"),
        ("timeline", "timeline workspace/hamlet --step 400", "measured"),
    ];
    for (name, command, words) in commands {
        let printed = if command == "top" { top.clone() } else { printed(folder.path(), command) };
        assert!(printed.contains(words), "stagecoach {command}: {printed}");
        let file = folder.path().join(format!("{name}.html"));
        let html = format!(
            "<!doctype html><meta charset=utf-8><style>{STYLE}</style><pre><b>$ stagecoach {command}</b>\n{}</pre>",
            printed.trim_end().replace('&', "&amp;").replace('<', "&lt;")
        );
        std::fs::write(&file, html).unwrap();
        browser.open(&format!("file://{}", file.display()));
        let height = browser.value("document.querySelector('pre').offsetHeight + 32").as_u64().unwrap();
        if let Some(pictures) = &pictures {
            browser.screenshot(&pictures.join(format!("{name}.png")), WIDTH, height);
        }
    }
}

/// Returns the whole output of `stagecoach COMMAND`.
fn printed(folder: &Path, command: &str) -> String {
    run_command(Command::new(stagecoach()).args(command.split(' ')).current_dir(folder)).1
}
