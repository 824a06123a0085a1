//! Writes and reads `metrics.jsonl` in the job's folder. The file has a line of JSON for each step.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use stagecoach_files::AtomicFile;

use super::{EvaluationRecord, StepRecord};

/// A failure to write or read the metrics.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The volume failed to read or write.
    #[error("{}: cannot {what} the metrics: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A line before the last line is not a [`StepRecord`].
    #[error("{}:{line}: this is not the record of a step ({source}): move the file away, and training starts with an \
             empty file", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The error.
        source: serde_json::Error,
    },
}

impl MetricsError {
    /// Whether the volume is full, so that a later write may succeed.
    pub fn is_volume_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }
}

/// A metrics file that is open for appending.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    /// The folder in which the file is created before it is renamed to `path`.
    temporary_folder: PathBuf,
    /// The open file; `None` until the first write has succeeded.
    file: Option<File>,
    /// Length in bytes of the lines that were written completely.
    written: u64,
    /// Lines that could not be written yet.
    pending: String,
    /// The step of the last line, written or pending.
    last_step: Option<u64>,
}

impl MetricsFile {
    /// Prepares a file with the lines of the old file up to `from_step`, so that a run that resumes after `from_step`
    /// keeps the records of the earlier steps. If `evaluation` is set, the line of `from_step` gets this evaluation.
    /// The first [`MetricsFile::flush`] creates the file in `temporary_folder` and renames it to `path`. A crash
    /// therefore leaves the old file or the new one. A group (the processes that train together) that has lost the
    /// fence, the right to commit, can't replace the file of a newer group, because the `temporary_folder` of the lost
    /// group no longer exists.
    ///
    /// # Errors
    /// Fails if the old file can't be read, or a line before the last line is not a record.
    pub fn new(
        path: &Path,
        temporary_folder: &Path,
        from_step: u64,
        evaluation: Option<EvaluationRecord>,
    ) -> Result<Self, MetricsError> {
        let (mut pending, mut last_step) = (String::new(), None);
        if from_step > 0 {
            for mut record in read_metrics(path)?.into_iter().filter(|record| record.step <= from_step) {
                if record.step == from_step {
                    evaluation.iter().for_each(|evaluation| record.set_evaluation(evaluation.clone()));
                }
                pending += &to_line(&record);
                last_step = Some(record.step);
            }
        }
        Ok(Self {
            path: path.to_owned(),
            temporary_folder: temporary_folder.to_owned(),
            file: None,
            written: 0,
            pending,
            last_step,
        })
    }

    /// Appends the line of a step. If the write fails, the line stays pending, and the next call writes it together
    /// with the next line.
    ///
    /// # Errors
    /// Fails if the volume fails.
    pub fn append(&mut self, record: &StepRecord) -> Result<(), MetricsError> {
        self.pending += &to_line(record);
        self.last_step = Some(record.step);
        self.flush()
    }

    /// Writes the pending lines.
    ///
    /// # Errors
    /// Fails if the volume fails; the lines stay pending.
    pub fn flush(&mut self) -> Result<(), MetricsError> {
        let (what, result) = match &mut self.file {
            Some(file) => ("write", append(file, self.written, &self.pending)),
            None => {
                ("start", create(&self.temporary_folder, &self.path, &self.pending).map(|file| self.file = Some(file)))
            }
        };
        result.map_err(|source| MetricsError::Io { path: self.path.clone(), what, source })?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Returns the step of the last line, written or pending.
    pub fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    /// Whether lines are pending, or the first write has not succeeded yet.
    pub fn has_pending_lines(&self) -> bool {
        self.file.is_none() || !self.pending.is_empty()
    }
}

/// Creates the file. The renamed file stays open: after a newer group has replaced the file at `path`, writes of this
/// group don't reach the new file.
fn create(folder: &Path, path: &Path, lines: &str) -> io::Result<File> {
    let mut file = AtomicFile::create_in(folder, path)?;
    file.write_all(lines.as_bytes())?;
    file.commit()
}

fn append(file: &mut File, written: u64, lines: &str) -> io::Result<()> {
    // a failed write may have left a part of its lines in the file
    if file.metadata()?.len() != written {
        file.set_len(written)?;
    }
    file.write_all(lines.as_bytes())
}

/// Returns all records. The list is empty if the file doesn't exist. An incomplete last line is ignored.
///
/// # Errors
/// Fails if the file can't be read, or a line before the last is not a record.
pub fn read_metrics(path: &Path) -> Result<Vec<StepRecord>, MetricsError> {
    // the file is read as bytes, because a crash may have cut the last line inside a character
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|source| MetricsError::Io { path: path.to_owned(), what: "read", source })?,
    };
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let mut records = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(_) if index + 1 == lines.len() => {}
            Err(source) => return Err(MetricsError::Line { path: path.to_owned(), line: index + 1, source }),
        }
    }
    Ok(records)
}

/// Returns a record as a line. Serialisation can't fail: the keys of all maps are strings, and numbers that are not
/// finite become null or are left out.
fn to_line(record: &StepRecord) -> String {
    serde_json::to_string(record).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::event_formatter::tests::record;
    use super::*;
    use crate::BestEvaluation;

    #[test]
    fn a_resume_keeps_the_steps_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, temporary) = (folder.path().join("metrics.jsonl"), folder.path().join("temporary"));
        fs::create_dir(&temporary).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), []);
        let open = |from_step| {
            let mut metrics = MetricsFile::new(&path, &temporary, from_step, None).unwrap();
            metrics.flush().unwrap();
            metrics
        };
        let mut metrics = open(7);
        (1..=5).for_each(|step| metrics.append(&record(step)).unwrap());
        let older = metrics;
        let mut metrics = open(3);
        metrics.append(&record(4)).unwrap();
        drop({ older }.append(&record(6)));
        let steps: Vec<u64> = read_metrics(&path).unwrap().iter().map(|record| record.step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        open(0);
        assert_eq!(read_metrics(&path).unwrap(), []);
    }

    #[test]
    fn the_last_line_gets_an_evaluation_that_its_group_had_no_time_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, (1..=4).map(|step| to_line(&record(step))).collect::<String>()).unwrap();
        let evaluation = EvaluationRecord {
            loss: 2.5,
            set_losses: [("web".to_owned(), 2.25), ("code".to_owned(), f64::NAN)].into(),
            best: BestEvaluation::after(None, 3, 2.5),
        };
        let evaluations = || -> Vec<StepRecord> {
            let lines = read_metrics(&path).unwrap();
            lines.into_iter().filter(|line| line.evaluation_loss.is_some()).collect()
        };
        MetricsFile::new(&path, folder.path(), 3, Some(evaluation)).unwrap().flush().unwrap();
        let expected = StepRecord {
            evaluation_loss: Some(2.5),
            evaluation_set_losses: [("web".to_owned(), 2.25)].into(),
            best_evaluation: Some(BestEvaluation { step: 3, loss: 2.5, evaluations_since: 0 }),
            ..record(3)
        };
        let expected = [expected];
        assert_eq!(evaluations(), expected);
        MetricsFile::new(&path, folder.path(), 3, None).unwrap().flush().unwrap();
        assert_eq!(evaluations(), expected, "a line keeps the evaluation that it has");
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_one_before_it_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let whole = to_line(&record(1)) + &to_line(&record(2));
        for cut in 1..to_line(&record(2)).len() {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            // without its line feed the last line is still complete
            assert_eq!(read_metrics(&path).unwrap().len(), if cut == 1 { 2 } else { 1 }, "{cut} bytes cut off");
        }
        fs::write(&path, format!("{}{{\"st\n{}", to_line(&record(1)), to_line(&record(2)))).unwrap();
        let error = read_metrics(&path).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl:2: this is not the record of a step"), "{error}");
    }

    #[test]
    fn lines_that_could_not_be_written_are_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let (path, fence) = (folder.path().join("metrics.jsonl"), folder.path().join("fence"));
        fs::write(&path, to_line(&record(1)) + &to_line(&record(2))).unwrap();
        let mut metrics = MetricsFile::new(&path, &fence, 1, None).unwrap();
        metrics.append(&record(2)).unwrap_err();
        assert!(metrics.has_pending_lines());
        metrics.append(&record(3)).unwrap_err();
        assert_eq!(read_metrics(&path).unwrap().len(), 2, "the old file is kept");
        fs::create_dir(&fence).unwrap();
        metrics.append(&record(4)).unwrap();
        let steps: Vec<u64> = read_metrics(&path).unwrap().iter().map(|record| record.step).collect();
        assert_eq!((steps, metrics.has_pending_lines()), (vec![1, 2, 3, 4], false));
    }

    #[test]
    fn a_missing_folder_is_named_in_the_error() {
        let mut metrics =
            MetricsFile::new(Path::new("/nowhere/metrics.jsonl"), Path::new("/nowhere/temporary"), 0, None).unwrap();
        let error = metrics.flush().unwrap_err();
        assert!(
            error.to_string().starts_with("/nowhere/metrics.jsonl: cannot start the metrics: No such file"),
            "{error}"
        );
        assert!(!error.is_volume_full() && metrics.has_pending_lines());
    }
}
