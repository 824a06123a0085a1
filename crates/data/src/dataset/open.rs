//! Opens a prepared corpus.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{Dataset, SourceSequences, TrainingSource};
use crate::config::{CorpusSource, DataConfig, DocumentFormat, HeldOut, HeldOutFiles, Streaming};
use crate::document_hashes::DocumentHashes;
use crate::error::DataError;
use crate::held_out::{Share, Split, split};
use crate::mapped::TokenFiles;
use crate::mixture::Mixture;
use crate::prepared::PreparedCorpus;
use crate::sequences::Sequences;
use crate::stream::TokenStream;
use crate::streaming::{SourceStream, WindowStore};

impl Dataset {
    /// Maps the files that [`prepare`](crate::prepare) wrote below `config.cache_root`. A streamed corpus consists of
    /// windows (fixed numbers of sequences), which are mapped when a step needs them.
    ///
    /// # Errors
    /// Fails if a file is missing or has the wrong size, or if the settings leave nothing to train on or to evaluate.
    pub fn open(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Dataset, DataError> {
        check(config)?;
        let folder = config.cache_root.join(&prepared.folder);
        let documents = match prepared.documents {
            0 => None,
            documents => Some(Arc::new(TokenFiles::open(&folder, prepared.tokens, documents, prepared.form())?)),
        };
        let mut dataset = Dataset {
            sources: Vec::new(),
            held_out: Vec::new(),
            mixture: Mixture::of(&config.sources),
            documents: documents.clone(),
            without: BTreeSet::new(),
            pad_token_id: i64::from(prepared.padding),
            streamed_files: Vec::new(),
        };
        let parts = prepared.documents_of_parts();
        let (of_sources, of_files) = parts.split_at(config.sources.len().min(parts.len()));
        match (&config.streaming, &documents) {
            (Some(streaming), _) => {
                dataset.add_streams(config, prepared, streaming);
                dataset.add_streamed_held_out_sets(config, of_sources)?;
            }
            (None, Some(files)) => dataset.add_sources(config, prepared, (&folder, files), of_sources)?,
            (None, None) => return Err(DataError::Empty { files: 0, notes: Vec::new() }),
        }
        dataset.hold_out_files(config, of_files)?;
        dataset.choose_held_out_loss(config);
        Ok(dataset)
    }

    /// Adds the tokenised sources, without their held-out parts.
    fn add_sources(
        &mut self,
        config: &DataConfig,
        prepared: &PreparedCorpus,
        (folder, files): (&Path, &Arc<TokenFiles>),
        of_sources: &[Range<u64>],
    ) -> Result<(), DataError> {
        let hashes = match config.held_out {
            HeldOut::Documents(_) => Some(DocumentHashes::open(folder, prepared)?),
            HeldOut::Nothing | HeldOut::LastSequences(_) => None,
        };
        for (source, range) in config.sources.iter().zip(of_sources) {
            let cut = |stream| Sequences::new(stream, config.sequence_length, config.cut(source.format));
            let (training, drawn) = training_stream(config, source.format, (files, hashes.as_ref()), range.clone());
            let (all, drawn) = (Arc::new(cut(training)), drawn.map(cut));
            let at_end = match config.held_out {
                HeldOut::LastSequences(fraction) => ((all.count as f64 * fraction) as u64).max(1),
                HeldOut::Nothing | HeldOut::Documents(_) => 0,
            };
            if all.count <= at_end {
                return Err(too_short(config, source.subject(), range, files, (&all, drawn.as_ref(), at_end)));
            }
            let count = all.count - at_end;
            if at_end > 0 {
                self.hold_out_end(source.name.clone(), &all, count..all.count, config.evaluation_max_sequences);
            } else if let Some(drawn) = drawn {
                self.hold_out(source.name.clone(), false, drawn, config);
            }
            let sequences = SourceSequences::Tokenised { all, count };
            self.sources.push(TrainingSource { sequences, stops: source.stops });
        }
        Ok(())
    }

    /// Adds the sources of a streamed corpus.
    fn add_streams(&mut self, config: &DataConfig, prepared: &PreparedCorpus, streaming: &Streaming) {
        for (index, source) in config.sources.iter().enumerate() {
            let store = WindowStore::new(streaming, &prepared.folder, index, prepared.form());
            let cut = config.cut(source.format);
            let stream = SourceStream::new(store, streaming.window_sequences, config.sequence_length, cut);
            let sequences = SourceSequences::Streamed(Box::new(stream));
            self.sources.push(TrainingSource { sequences, stops: source.stops });
        }
    }

    /// Holds out the documents that were drawn from the first windows of streams.
    fn add_streamed_held_out_sets(&mut self, config: &DataConfig, of_sources: &[Range<u64>]) -> Result<(), DataError> {
        let Some(files) = self.documents.clone() else { return Ok(()) };
        let drawn = config.sources.iter().zip(of_sources).filter(|(_, range)| !range.is_empty());
        for (CorpusSource { name, format, .. }, range) in drawn {
            let stream = TokenStream::of_documents(&files, range.clone());
            let sequences = Sequences::new(stream, config.sequence_length, config.cut(*format));
            self.hold_out(name.clone(), false, sequences, config);
        }
        Ok(())
    }

    /// Holds out the sets of files.
    fn hold_out_files(&mut self, config: &DataConfig, of_files: &[Range<u64>]) -> Result<(), DataError> {
        let too_short = |files: &HeldOutFiles, tokens| DataError::HeldOutTooShort {
            subject: files.subject(),
            tokens,
            sequence_length: config.sequence_length,
        };
        for (set, range) in config.held_out_files.iter().zip(of_files) {
            let Some(files) = self.documents.clone() else { return Err(too_short(set, 0)) };
            let stream = TokenStream::of_documents(&files, range.clone());
            let sequences = Sequences::new(stream, config.sequence_length, config.cut(set.format));
            if sequences.count == 0 {
                return Err(too_short(set, sequences.stream.tokens()));
            }
            self.hold_out(set.name.clone(), true, sequences, config);
        }
        Ok(())
    }
}

/// Returns the training documents of a source, and the documents that are drawn by hash to be held out, if any.
fn training_stream(
    config: &DataConfig,
    format: DocumentFormat,
    (files, hashes): (&Arc<TokenFiles>, Option<&DocumentHashes>),
    documents: Range<u64>,
) -> (TokenStream, Option<TokenStream>) {
    match (config.held_out, hashes) {
        (HeldOut::Documents(fraction), Some(hashes)) => {
            let share = Share {
                fraction,
                seed: config.seed,
                least_tokens: config.least_held_out_tokens(format),
                whole_documents: format != DocumentFormat::Text,
            };
            let Split { training, held_out } = split(files, hashes, documents, share);
            (training, Some(held_out))
        }
        _ => (TokenStream::of_documents(files, documents), None),
    }
}

/// Checks the sequence length and the held-out fraction. Also checks that no held-out set has the name of a source with
/// a held-out part.
fn check(config: &DataConfig) -> Result<(), DataError> {
    if config.sequence_length == 0 {
        return Err(DataError::Invalid { problem: "data.sequenceLength is 0: it must be at least 1".into() });
    }
    let is_of_source = |name: &str| config.sources.iter().any(|source| source.name == name);
    let source_files = config.held_out_files.iter().find(|files| !files.name.is_empty() && is_of_source(&files.name));
    match (config.held_out, source_files) {
        (HeldOut::Documents(_) | HeldOut::LastSequences(_), Some(files)) => {
            let problem = format!(
                "data.evaluation.sets: the set {} has the name of a source, and the loss of that source's held-out \
                 part is reported under this name: give the set another name",
                files.name
            );
            Err(DataError::Invalid { problem })
        }
        (HeldOut::Documents(fraction) | HeldOut::LastSequences(fraction), None)
            if !(fraction > 0.0 && fraction < 1.0) =>
        {
            let problem = format!("data.evaluation.fraction is {fraction}: it must be above 0 and below 1");
            Err(DataError::Invalid { problem })
        }
        _ => Ok(()),
    }
}

/// Returns the error for a source whose `documents` make no training sequence in addition to the held-out sequences.
fn too_short(
    config: &DataConfig,
    subject: String,
    documents: &Range<u64>,
    files: &TokenFiles,
    (sequences, drawn, at_end): (&Sequences, Option<&Sequences>, u64),
) -> DataError {
    let drawn = drawn.map_or(0, |drawn| drawn.count);
    DataError::TooShort {
        subject,
        tokens: files.offsets.start(documents.end) - files.offsets.start(documents.start),
        documents: documents.end - documents.start,
        sequences: sequences.count + drawn,
        sequence_length: config.sequence_length,
        held_out: drawn + at_end.min(sequences.count),
    }
}
