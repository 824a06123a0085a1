//! `metrics.jsonl`: a line of JSON for every step, in the job's folder.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use stagecoach_files::AtomicFile;

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

impl MetricsError {
    /// Whether the volume has no room: what could not be written can be later.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }
}

/// The file, to append to.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    /// The folder that it is made in.
    aside: PathBuf,
    /// None until the volume has taken its first lines.
    file: Option<File>,
    /// Bytes that are lines for sure.
    whole: u64,
    /// Lines that the volume has not taken yet.
    pending: String,
}

impl Metrics {
    /// A new file, with the lines of the old one up to `from_step`: 0 starts afresh, a resume keeps what it resumes from.
    /// The first [`Metrics::write`] makes it in the folder `aside` and renames it to `path`: a crash leaves the old file or
    /// the new one, and a group whose `aside` is taken away can't replace what a newer group writes.
    ///
    /// # Errors
    /// The old file can't be read, or a line within it isn't a record.
    pub fn new(path: &Path, aside: &Path, from_step: u64) -> Result<Self, MetricsError> {
        let mut pending = String::new();
        if from_step > 0 {
            for record in read_metrics(path)?.iter().filter(|record| record.step <= from_step) {
                pending += &line(record);
            }
        }
        Ok(Self { path: path.to_owned(), aside: aside.to_owned(), file: None, whole: 0, pending })
    }

    /// Appends a step's line. If the volume doesn't take it, it is kept and goes with the next one.
    ///
    /// # Errors
    /// The volume's.
    pub fn append(&mut self, record: &StepRecord) -> Result<(), MetricsError> {
        self.pending += &line(record);
        self.write()
    }

    /// Writes what the file lacks.
    ///
    /// # Errors
    /// The volume's: the lines are kept then.
    pub fn write(&mut self) -> Result<(), MetricsError> {
        let (what, written) = match &mut self.file {
            Some(file) => ("write", append(file, self.whole, &self.pending)),
            None => ("start", start(&self.path, &self.aside, &self.pending).map(|file| self.file = Some(file))),
        };
        written.map_err(|source| MetricsError::Io { path: self.path.clone(), what, source })?;
        self.whole += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Whether the file lacks something that the volume would not take.
    pub fn is_behind(&self) -> bool {
        self.file.is_none() || !self.pending.is_empty()
    }
}

/// The file that is renamed stays open: what a newer group puts in its place is never written to.
fn start(path: &Path, aside: &Path, lines: &str) -> io::Result<File> {
    let mut file = AtomicFile::create_in(aside, path)?;
    file.write_all(lines.as_bytes())?;
    file.commit()
}

fn append(file: &mut File, whole: u64, lines: &str) -> io::Result<()> {
    // what a write that failed has left of its lines
    if file.metadata()?.len() != whole {
        file.set_len(whole)?;
    }
    file.write_all(lines.as_bytes())
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
        fs::create_dir(&aside).unwrap();
        assert_eq!(read_metrics(&path).unwrap(), []);
        let open = |from_step| {
            let mut metrics = Metrics::new(&path, &aside, from_step).unwrap();
            metrics.write().unwrap();
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
    fn what_the_volume_does_not_take_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let (path, fence) = (folder.path().join("metrics.jsonl"), folder.path().join("fence"));
        fs::write(&path, line(&record(1)) + &line(&record(2))).unwrap();
        let mut metrics = Metrics::new(&path, &fence, 1).unwrap();
        metrics.append(&record(2)).unwrap_err();
        assert!(metrics.is_behind());
        metrics.append(&record(3)).unwrap_err();
        assert_eq!(read_metrics(&path).unwrap().len(), 2, "the old file stays");
        fs::create_dir(&fence).unwrap();
        metrics.append(&record(4)).unwrap();
        let steps: Vec<u64> = read_metrics(&path).unwrap().iter().map(|record| record.step).collect();
        assert_eq!((steps, metrics.is_behind()), (vec![1, 2, 3, 4], false));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let mut metrics = Metrics::new(Path::new("/nowhere/metrics.jsonl"), Path::new("/nowhere/aside"), 0).unwrap();
        let error = metrics.write().unwrap_err();
        assert!(
            error.to_string().starts_with("/nowhere/metrics.jsonl: cannot start the metrics: No such file"),
            "{error}"
        );
        assert!(!error.is_full() && metrics.is_behind());
    }
}
