//! `metrics.jsonl`: a line of JSON for every step, in the job's folder.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::StepRecord;

/// Why the metrics could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file system refused.
    #[error("{}: cannot {what} the metrics: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What came back.
        source: io::Error,
    },
    /// A line other than the last isn't a record.
    #[error("{}:{line}: this is not a step's record ({source}): move the file away to start with an empty one", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The file, open to append to.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes that are lines for sure.
    whole: u64,
    /// Lines that the volume has not taken yet.
    pending: String,
}

impl Metrics {
    /// Starts a new file with the lines of the old one up to `from_step`: 0 starts afresh, a resume keeps what it resumes
    /// from. It is made as `aside` and renamed to `path`: a crash leaves the old file or the new one, and a group whose
    /// `aside` is taken away can't replace what a newer group writes.
    ///
    /// # Errors
    /// The volume's, and a line within the file that isn't a record.
    pub fn open(path: &Path, aside: &Path, from_step: u64) -> Result<Self, MetricsError> {
        let mut kept = String::new();
        if from_step > 0 {
            for record in read_metrics(path)?.iter().filter(|record| record.step <= from_step) {
                kept += &line(record);
            }
        }
        let whole = kept.len() as u64;
        let open = || {
            let mut file = File::options().create(true).append(true).open(aside)?;
            file.set_len(0)?;
            file.write_all(kept.as_bytes())?;
            // this very file stays open: what a newer group puts in its place is never written to
            fs::rename(aside, path)?;
            Ok(Self { path: path.to_owned(), file, whole, pending: String::new() })
        };
        open().map_err(|source| MetricsError::Io { path: path.to_owned(), what: "start", source })
    }

    /// Appends a step's line. If the volume doesn't take it, it is kept and goes with the next one.
    ///
    /// # Errors
    /// The volume's.
    pub fn append(&mut self, record: &StepRecord) -> Result<(), MetricsError> {
        self.pending += &line(record);
        let mut write = || {
            // what a write that failed has left of its lines
            if self.file.metadata()?.len() != self.whole {
                self.file.set_len(self.whole)?;
            }
            self.file.write_all(self.pending.as_bytes())
        };
        write().map_err(|source| MetricsError::Io { path: self.path.clone(), what: "write", source })?;
        self.whole += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// Reads all records. A file that doesn't exist holds none; a torn last line is dropped.
///
/// # Errors
/// The volume's, and a line before the last that isn't a record.
pub fn read_metrics(path: &Path) -> Result<Vec<StepRecord>, MetricsError> {
    // A crash may tear the last line within a character.
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

/// Writing a record can't fail: it has no maps, and numbers that aren't finite become null.
fn line(record: &StepRecord) -> String {
    serde_json::to_string(record).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::record;
    use super::*;

    #[test]
    fn a_resume_keeps_what_it_resumes_from() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("metrics.jsonl"), folder.path().join("aside"));
        assert_eq!(read_metrics(&path).unwrap(), []);
        let mut metrics = Metrics::open(&path, &aside, 7).unwrap();
        (1..=5).for_each(|step| metrics.append(&record(step)).unwrap());
        let older = metrics;
        let mut metrics = Metrics::open(&path, &aside, 3).unwrap();
        metrics.append(&record(4)).unwrap();
        drop({ older }.append(&record(6)));
        let steps: Vec<u64> = read_metrics(&path).unwrap().iter().map(|record| record.step).collect();
        assert_eq!(steps, [1, 2, 3, 4]);
        Metrics::open(&path, &aside, 0).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), []);
    }

    #[test]
    fn a_torn_last_line_is_dropped_and_a_torn_middle_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let whole = line(&record(1)) + &line(&record(2));
        for cut in 1..line(&record(2)).len() {
            fs::write(&path, &whole[..whole.len() - cut]).unwrap();
            // Without its line feed the last line is whole all the same.
            assert_eq!(read_metrics(&path).unwrap().len(), if cut == 1 { 2 } else { 1 }, "{cut} bytes cut off");
        }
        fs::write(&path, format!("{}{{\"st\n{}", line(&record(1)), line(&record(2)))).unwrap();
        let error = read_metrics(&path).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl:2: this is not a step's record"), "{error}");
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error =
            Metrics::open(Path::new("/nowhere/metrics.jsonl"), Path::new("/nowhere/aside"), 0).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/metrics.jsonl: cannot start the metrics: No such file"), "{error}");
    }
}
