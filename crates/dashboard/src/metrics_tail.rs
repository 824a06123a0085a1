//! Reads `metrics.jsonl` while the file grows. The reader reads each byte once, unless the file is replaced.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::metrics::Metrics;

/// The largest number of bytes per read.
const READ_BYTES: usize = 1 << 20;
/// The length of the longest line that is parsed, in bytes. A longer line is dropped.
const MAX_LINE_BYTES: usize = 64 << 20;

/// The metrics of a run, and the position up to which the file was read. The run may still append to the file.
#[derive(Debug)]
pub(super) struct MetricsTail {
    path: PathBuf,
    /// The open file. The system does not reuse the inode of an open file, so a new file at the path has another inode.
    file: Option<File>,
    /// The number of bytes read so far.
    read: u64,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    metrics: Arc<Metrics>,
}

impl MetricsTail {
    /// Creates a reader that has read nothing yet.
    pub(super) fn new(path: PathBuf) -> Self {
        MetricsTail { path, file: None, read: 0, rest: Vec::new(), metrics: Arc::default() }
    }

    /// Reads the lines that were added since the last call, and returns the metrics. The metrics are empty if the file
    /// doesn't exist.
    ///
    /// # Errors
    /// Fails if the file can't be read. The metrics from earlier calls remain.
    pub(super) fn refresh(&mut self) -> io::Result<Arc<Metrics>> {
        let found = match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                *self = MetricsTail::new(std::mem::take(&mut self.path));
                return Ok(self.metrics.clone());
            }
            found => found?,
        };
        let is_same =
            |file: &File| file.metadata().is_ok_and(|open| (open.dev(), open.ino()) == (found.dev(), found.ino()));
        if !self.file.as_ref().is_some_and(is_same) || found.len() < self.read {
            let file = File::open(&self.path)?;
            *self = MetricsTail { file: Some(file), ..MetricsTail::new(std::mem::take(&mut self.path)) };
        }
        let (Some(file), metrics) = (&mut self.file, Arc::make_mut(&mut self.metrics)) else {
            return Ok(Arc::default());
        };
        let mut chunk = vec![0; READ_BYTES];
        loop {
            let count = match file.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Ok(self.metrics.clone());
            }
            self.read += count as u64;
            let mut lines = chunk[..count].split(|byte| *byte == b'\n');
            self.rest.extend_from_slice(lines.next().unwrap_or_default());
            for line in lines {
                metrics.add(&self.rest);
                self.rest.clear();
                self.rest.extend_from_slice(line);
            }
            if self.rest.len() > MAX_LINE_BYTES {
                self.rest.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(step: u64) -> String {
        format!("{{\"step\":{step},\"loss\":{step}}}\n")
    }

    fn last(tail: &mut MetricsTail) -> u64 {
        tail.refresh().unwrap().last.as_ref().map_or(0, |line| line.step)
    }

    #[test]
    fn lines_are_read_as_they_are_completed_and_a_replaced_file_from_its_begin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut tail = MetricsTail::new(path.clone());
        assert_eq!(last(&mut tail), 0);
        let mut file = File::create(&path).unwrap();
        write!(file, "{}{}", line(1), &line(2)[..5]).unwrap();
        assert_eq!((last(&mut tail), tail.read), (1, line(1).len() as u64 + 5));
        write!(file, "{}{}", &line(2)[5..], line(3)).unwrap();
        assert_eq!((last(&mut tail), tail.refresh().unwrap().unreadable), (3, 0));
        // a job that resumes from a checkpoint replaces the file with a new one, of any length
        let new = folder.path().join("new");
        fs::write(&new, format!("{}{}", line(1), line(2))).unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!((last(&mut tail), tail.refresh().unwrap().loss.columns(0, 9, 9).len()), (2, 2));
        let longer: String = (1..=9).map(line).collect();
        fs::write(&new, longer).unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!(last(&mut tail), 9);
        fs::write(&path, line(1)).unwrap();
        assert_eq!(last(&mut tail), 1, "truncated");
        fs::remove_file(&path).unwrap();
        assert_eq!(last(&mut tail), 0);
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, (1..=1000).map(line).collect::<String>()).unwrap();
        let mut tail = MetricsTail::new(path.clone());
        last(&mut tail);
        let before = tail.read;
        File::options().append(true).open(&path).unwrap().write_all(line(1001).as_bytes()).unwrap();
        assert_eq!((last(&mut tail), tail.read - before), (1001, line(1001).len() as u64));
    }
}
