//! A real browser: headless Chromium, controlled through its DevTools protocol over a pipe. A message is JSON and ends
//! with a zero byte. The browser has a new profile and can reach only this machine.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Deadline, spawn, until};

/// A browser with one page. Dropping this value ends the browser.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    next_id: u64,
    events: VecDeque<Value>,
    profile: TempDir,
}

impl Browser {
    /// Starts Chromium with an empty page.
    ///
    /// # Panics
    /// If the variable `STAGECOACH_CHROMIUM` does not contain the path of Chromium.
    pub fn start() -> Browser {
        let program = std::env::var("STAGECOACH_CHROMIUM")
            .expect("STAGECOACH_CHROMIUM is not set, expected the path of Chromium: run `make page`");
        let profile = tempfile::tempdir().unwrap();
        // the protocol uses the file descriptors 3 and 4
        let script = format!(
            "exec {program} --headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --no-first-run \
             --disable-dev-shm-usage --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars \
             --host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE 127.0.0.1' --user-data-dir=\"$0\" \
             3<&0 4>&1 </dev/null >/dev/null 2>\"$0/log\""
        );
        let mut command = Command::new("sh");
        // Chromium does not remove its temporary folders if it is killed
        command.args(["-c", &script]).arg(profile.path()).env("TMPDIR", profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(&mut command).unwrap();
        let (requests, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut browser = Browser {
            child,
            requests,
            messages: receive(answers),
            session: None,
            next_id: 0,
            events: VecDeque::new(),
            profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method of the protocol, and returns its result.
    ///
    /// # Panics
    /// If the method fails or the browser does not answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let mut request = json!({"id": self.next_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self
                .messages
                .recv_timeout(Deadline::start().limit())
                .unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == json!(self.next_id) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push_back(message);
        }
    }

    /// Opens an address and waits until the page has loaded.
    pub fn open(&mut self, address: &str) {
        self.call("Page.navigate", json!({"url": address}));
        self.wait("the page to load", "document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Returns the value of an expression in the page.
    ///
    /// # Panics
    /// If the expression throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let result = self
            .call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true, "awaitPromise": true}));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression in the page becomes true.
    ///
    /// # Panics
    /// If the expression is not true at the deadline. The message names `what`.
    pub fn wait(&mut self, what: &str, expression: &str) {
        let deadline = Deadline::start();
        while self.value(expression) != json!(true) {
            assert!(!deadline.is_over(), "waited for {what}: {}", self.value("document.body.innerText"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key. `key` is the value of `KeyboardEvent.key`.
    pub fn press(&mut self, key: &str) {
        let (text, code) = match key {
            "Tab" => ("", 9),
            "Enter" => ("\r", 13),
            "ArrowLeft" => ("", 37),
            "ArrowUp" => ("", 38),
            "ArrowRight" => ("", 39),
            "ArrowDown" => ("", 40),
            character => (character, 0),
        };
        let event = |kind: &str| json!({"type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code});
        self.call("Input.dispatchKeyEvent", event("keyDown"));
        self.call("Input.dispatchKeyEvent", event("keyUp"));
    }

    /// Presses Tab until `is_focused`, an expression in the page, is true.
    ///
    /// # Panics
    /// If Tab does not reach the element. The message names `what`.
    pub fn wait_for_focus(&mut self, what: &str, is_focused: &str) {
        for _ in 0..50 {
            self.press("Tab");
            if self.value(is_focused) == json!(true) {
                return;
            }
        }
        panic!("{what} can't be reached by the tabulator");
    }

    /// Drags the mouse from one point of the window to another.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        for (kind, (x, y), buttons) in [("mousePressed", from, 1), ("mouseMoved", to, 1), ("mouseReleased", to, 0)] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Sets the window's size in CSS pixels. If `is_phone`, emulates a phone with two device pixels for each CSS pixel.
    pub fn resize(&mut self, width: u32, height: u32, is_phone: bool) {
        let scale = if is_phone { 2 } else { 1 };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Sets the preferred colour scheme, `light` or `dark`.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Writes the first `height` CSS pixels of the page to a PNG file.
    pub fn screenshot(&mut self, file: &Path, width: u32, height: u64) {
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", params);
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    /// Returns the addresses of all requests so far.
    pub fn requests(&mut self) -> Vec<String> {
        let sent = self.events().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns all messages in the console so far, including exceptions and violations of the content security policy.
    /// A page without problems writes none.
    pub fn console_errors(&mut self) -> Vec<String> {
        let console_error = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params.to_string()),
                "Runtime.consoleAPICalled" => Some(params.to_string()),
                "Log.entryAdded" => Some(params["entry"].to_string()),
                _ => None,
            }
        };
        self.events().filter_map(console_error).collect()
    }

    fn events(&mut self) -> impl Iterator<Item = &Value> {
        // the browser answers this call after it has sent all earlier events
        self.value("0");
        self.events.iter()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            // the other processes of the browser end after the browser, and write into the profile until then
            until("the browser's profile to be removed", || std::fs::remove_dir_all(self.profile.path()).ok());
        }
    }
}

/// Reads messages until the browser ends.
fn receive(answers: ChildStdout) -> Receiver<Value> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(answers).split(0) {
            let Some(message) = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) else { return };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    messages
}
