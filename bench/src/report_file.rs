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

    /// Returns the report in the file, if the report is of this commit.
    pub(crate) fn read(&self) -> Option<Value> {
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
