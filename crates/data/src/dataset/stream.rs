//! Makes the windows of a streamed dataset, and waits for the windows of a step. A window is a fixed number of
//! sequences.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Dataset, SourceSequences};
use crate::cache::check_contents;
use crate::config::DataConfig;
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::prepared::PreparedCorpus;
use crate::streaming::{DocumentCounts, SourceStream, StreamPosition, WindowMaker};
use crate::surroundings::OnWait;

impl Dataset {
    /// Starts to make the windows of a streamed dataset in this process, which is the process of the group's leader.
    /// `positions` are the positions of the sources in a checkpoint, or empty at the beginning of a job. The function
    /// has no effect on a dataset that is not streamed.
    ///
    /// # Errors
    /// Fails if the sources can't be listed, if their contents differ from the prepared contents, or if the tokenizer
    /// can't be read.
    pub fn make_windows(
        &mut self,
        config: &DataConfig,
        prepared: &PreparedCorpus,
        positions: &[StreamPosition],
    ) -> Result<(), DataError> {
        let Some(streaming) = &config.streaming else { return Ok(()) };
        remove_other_windows(&streaming.folder, &prepared.folder);
        let activity = Arc::new(AtomicU64::new(0));
        let (receive, waits) = (config.on_wait.receiver(), Arc::clone(&activity));
        let on_wait = OnWait::new(move |sentence| {
            waits.fetch_add(1, Ordering::Relaxed);
            receive(sentence);
        });
        let mut corpus = Corpus::find(&DataConfig { on_wait, ..config.clone() })?;
        // a checkpoint's positions are only valid for the prepared contents
        check_contents(config, prepared, &corpus)?;
        corpus.count_bytes(&activity);
        self.streamed_files = corpus.file_names().into_iter().map(str::to_owned).collect();
        let corpus = Arc::new(corpus);
        let tokenizer = Arc::new(prepared.tokenizer(config)?);
        for (index, source) in self.sources.iter_mut().enumerate() {
            let SourceSequences::Streamed(stream) = &mut source.sequences else { continue };
            let start = positions.get(index).cloned().unwrap_or_default();
            let max_bytes = streaming.max_bytes / config.sources.len() as u64;
            let at = start.clone();
            let maker =
                |store: &_| WindowMaker::start(config, (&corpus, index), &tokenizer, (store, at), max_bytes, &activity);
            stream.make_with(maker, start);
        }
        Ok(())
    }

    /// Waits for the data of `sequences` sequences from `position` on. `keep_waiting` receives a counter that grows
    /// while the sources are read. The wait ends early if `keep_waiting` returns false. Returns the duration of the
    /// wait, or `None` for a dataset that is not streamed.
    ///
    /// # Errors
    /// Fails if a window can't be made or opened, or with `WaitEnded` if the wait ends early.
    pub fn wait_for_step(
        &self,
        position: u64,
        sequences: usize,
        keep_waiting: &dyn Fn(u64) -> bool,
    ) -> Result<Option<Duration>, DataError> {
        let begun = Instant::now();
        let (before, after) = (self.mixture.counts(position), self.mixture.counts(position + sequences as u64));
        let mut is_streamed = false;
        for (index, stream) in self.streams() {
            is_streamed = true;
            if before[index] < after[index] {
                let windows = before[index] / stream.sequences..=(after[index] - 1) / stream.sequences;
                stream.wait_for(windows, keep_waiting)?;
            }
        }
        Ok(is_streamed.then(|| begun.elapsed()))
    }

    /// Returns the position of each source's stream after `position` sequences. Training must have read all steps up to
    /// `position`. The list is empty for a dataset that is not streamed.
    pub fn stream_positions(&self, position: u64) -> Vec<StreamPosition> {
        let counts = self.mixture.counts(position);
        self.streams().filter_map(|(index, stream)| stream.position_after(counts[index])).collect()
    }

    /// Returns sentences about the documents in the windows of the first `position` sequences: their numbers and
    /// findings. The last of these windows must still be mapped into memory. The list is empty for a dataset that is
    /// not streamed.
    pub fn stream_notes(&self, position: u64) -> Vec<String> {
        let counts = self.mixture.counts(position);
        // If the last window of a source is not open, this process has not read the source. The position at which this
        // process began then has the counts.
        let source_counts = |(index, stream): (usize, &SourceStream)| {
            let begun = || Some(stream.position_after(counts[index])?.counts().clone());
            stream.counts_after(counts[index]).or_else(begun)
        };
        let read: Vec<DocumentCounts> = self.streams().filter_map(source_counts).collect();
        if read.is_empty() {
            return Vec::new();
        }
        let sum = DocumentCounts::sum(read.iter());
        let files: Vec<&str> = self.streamed_files.iter().map(String::as_str).collect();
        let mut notes = vec![format!("of the streamed corpus: {}", sum.sentence())];
        notes.extend(sum.findings.notes(&files));
        notes
    }

    fn streams(&self) -> impl Iterator<Item = (usize, &SourceStream)> {
        self.sources.iter().enumerate().filter_map(|(index, source)| match &source.sequences {
            SourceSequences::Streamed(stream) => Some((index, &**stream)),
            SourceSequences::Tokenised { .. } => None,
        })
    }
}

/// Removes the windows of other token caches, because no step reads them. If the removal fails, the windows only take
/// up space.
fn remove_other_windows(folder: &Path, kept: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if Path::new(&name) != kept && name.to_str().is_some_and(stagecoach_files::is_cache_key) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
