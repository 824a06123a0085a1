//! Calls of the user's kubectl.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The user's kubectl, with the flags that select the cluster and the namespace.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    program: OsString,
    flags: Vec<OsString>,
}

impl Kubectl {
    pub(crate) fn new(program: &OsStr, flags: Vec<OsString>) -> Kubectl {
        Kubectl { program: program.to_owned(), flags }
    }

    /// Runs kubectl to its end and returns its output.
    ///
    /// # Errors
    /// Returns the error of kubectl, or an error if kubectl can't be started.
    pub(crate) fn output(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).stdin(Stdio::null()).output().with_context(|| self.not_started())?;
        stdout(arguments.first().copied().unwrap_or_default(), &output)
    }

    /// Runs kubectl to its end and parses its output as JSON.
    ///
    /// # Errors
    /// Returns the same errors as [`Kubectl::output`], and an error if the output is not JSON of type `T`.
    pub(crate) fn json<T: DeserializeOwned>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        let output = self.output(&[arguments, &["--output", "json"]].concat())?;
        parsed(&arguments.join(" "), &output)
    }

    /// Creates `object` and returns the object that the API server stored.
    ///
    /// # Errors
    /// Returns the same errors as [`Kubectl::json`].
    pub(crate) fn create<T: DeserializeOwned>(&self, object: &Value) -> anyhow::Result<T> {
        let mut command = self.command(&["create", "--filename", "-", "--output", "json"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = piped.spawn().with_context(|| self.not_started())?;
        // ignore a failed write: kubectl itself reports why it stopped reading
        let _ = process.stdin.take().map(|mut input| write!(input, "{object}"));
        parsed("create", &stdout("create", &process.wait_with_output()?)?)
    }

    /// Starts kubectl and returns its process, whose output the caller can read.
    ///
    /// # Errors
    /// Returns an error if kubectl can't be started.
    pub(crate) fn start(&self, arguments: &[&str]) -> anyhow::Result<Child> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| self.not_started())
    }

    /// Builds a command with the flags before the arguments, because arguments after `--` are for a program in a pod.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.flags).args(arguments);
        command
    }

    fn not_started(&self) -> String {
        format!("could not start {}: it must be on the PATH", self.program.display())
    }
}

/// Returns the standard output of a successful call, or an error with the message of kubectl.
fn stdout(verb: &str, output: &Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!("kubectl {verb}: {}", error_text(&String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses the output of `kubectl CALL` as JSON.
fn parsed<T: DeserializeOwned>(call: &str, output: &str) -> anyhow::Result<T> {
    serde_json::from_str(output).with_context(|| format!("the output of `kubectl {call}` can't be parsed"))
}

/// Returns the error message of kubectl, without the log lines that kubectl writes before the message, such as `E1123
/// 20:54:01.121742 ...`.
fn error_text(stderr: &str) -> String {
    let is_log = |line: &str| {
        let (level, rest) = line.split_at_checked(1).unwrap_or_default();
        ["E", "W", "I"].contains(&level) && rest.bytes().take(4).filter(u8::is_ascii_digit).count() == 4
    };
    let lines: Vec<&str> = stderr.trim().lines().filter(|line| !is_log(line)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_text_has_no_log_lines() {
        let stderr =
            "E1123 20:54:01.1 memcache.go:265] refused\nW1123 20:54:01.2 old\nThe connection was refused\nError 1\n";
        assert_eq!(error_text(stderr), "The connection was refused\nError 1");
        assert_eq!(error_text("E1 is an error\n\u{e9}\n"), "E1 is an error\n\u{e9}");
    }
}
