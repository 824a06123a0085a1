//! The file in `bench/results/` to which a report is written.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::machine;

/// The path of a report, and the fields that every report has in addition to its measurements.
pub(crate) struct ReportFile {
    path: PathBuf,
    commit: String,
    date: String,
}

impl ReportFile {
    pub(crate) fn new(what: &str, results: &Path) -> ReportFile {
        let path = results.join(format!("{what}.json"));
        ReportFile { path, commit: machine::commit(), date: jiff::Timestamp::now().to_string() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the report in the file, if the report is of the same code. Only a clean commit identifies the code: `git
    /// describe` returns the same text for all changed trees of a commit.
    pub(crate) fn read(&self) -> Option<Value> {
        if self.commit.is_empty() || self.commit.ends_with(machine::DIRTY) {
            return None;
        }
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&self.path).ok()?).ok()?;
        (report["commit"] == self.commit.as_str()).then_some(report)
    }

    /// Replaces the file. A reader finds either this whole report or the whole previous report.
    pub(crate) fn write(&self, report: &Value) {
        let mut report = report.clone();
        report["machine"] = machine::describe();
        report["commit"] = self.commit.as_str().into();
        report["date"] = self.date.as_str().into();
        let unfinished = self.path.with_extension("json.unfinished");
        std::fs::write(&unfinished, format!("{report:#}\n")).unwrap();
        std::fs::rename(&unfinished, &self.path).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_report_of_the_same_clean_commit_is_read() {
        let path = std::env::temp_dir().join(format!("report-{}.json", std::process::id()));
        let reads = |before: &str, now: &str| {
            let file = |commit: &str| ReportFile { path: path.clone(), commit: commit.into(), date: String::new() };
            file(before).write(&json!({ "kills": 1 }));
            file(now).read().is_some_and(|report| report["kills"] == 1)
        };
        assert!(reads("a1b2", "a1b2"));
        assert!(!reads("a1b2", "c3d4"));
        assert!(!reads("a1b2-dirty", "a1b2"));
        assert!(!reads("a1b2-dirty", "a1b2-dirty"));
        assert!(!reads("", ""));
        std::fs::remove_file(&path).unwrap();
    }
}
