//! Batches from the token cache: the sequences of a step's microbatches, and their token ids.

mod document_parts;
mod evaluation;
mod microbatch;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::config::{DataConfig, HeldOut};
use crate::document_hashes::DocumentHashes;
use crate::error::DataError;
use crate::held_out::{Share, Split, split};
use crate::mapped::{DocumentOffsets, TokenIds};
use crate::mixture::Mixture;
use crate::order;
use crate::prepared::{DOCUMENTS_FILE, PreparedCorpus, TOKEN_IDS_FILE};
use crate::sequences::Sequences;
use crate::stream::TokenStream;
pub use document_parts::DocumentPart;
use evaluation::HeldOutSequences;
pub use evaluation::HeldOutSet;
use microbatch::SequenceId;
pub use microbatch::{BatchPlan, IGNORE_INDEX, Microbatch, MicrobatchLayout, RowSource};

/// A prepared corpus, memory-mapped. Opening it is cheap, for any number of processes.
pub struct Dataset {
    token_ids: TokenIds,
    documents: Arc<DocumentOffsets>,
    /// The sequences of the sources, in their order, then those of held-out documents.
    streams: Vec<Sequences>,
    sources: Vec<TrainingSource>,
    held_out: Vec<HeldOutSequences>,
    mixture: Mixture,
    /// Documents whose tokens are not targets in training.
    without: BTreeSet<u64>,
    pad_token_id: i64,
}

/// A source, whose first sequences are trained on.
struct TrainingSource {
    sequences: u64,
    stops: bool,
}

impl Dataset {
    /// Maps the files that [`prepare`](crate::prepare) wrote below `config.cache_root`.
    ///
    /// # Errors
    /// Fails if a file is missing or has the wrong size, or if the settings leave nothing to train on or to evaluate.
    pub fn open(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Dataset, DataError> {
        check(config)?;
        let folder = config.cache_root.join(&prepared.folder);
        let documents = Arc::new(DocumentOffsets::open(&folder.join(DOCUMENTS_FILE), prepared.documents)?);
        let hashes = match config.held_out {
            HeldOut::Documents(_) => Some(DocumentHashes::open(&folder, prepared)?),
            HeldOut::Nothing | HeldOut::LastSequences(_) => None,
        };
        let mut dataset = Dataset {
            token_ids: TokenIds::open(&folder.join(TOKEN_IDS_FILE), prepared.tokens, prepared.id_bytes)?,
            documents,
            streams: Vec::new(),
            sources: Vec::new(),
            held_out: Vec::new(),
            mixture: Mixture::of(&config.sources),
            without: BTreeSet::new(),
            pad_token_id: i64::from(prepared.padding),
        };
        let parts = prepared.documents_of_parts();
        let (of_sources, of_files) = parts.split_at(config.sources.len().min(parts.len()));
        let mut held_out = Vec::new();
        for (source, range) in config.sources.iter().zip(of_sources) {
            let (training, drawn) = dataset.training_stream(config, hashes.as_ref(), range.clone());
            let sequences = Sequences::new(training, config.sequence_length, config.packing);
            let at_end = match config.held_out {
                HeldOut::LastSequences(fraction) => ((sequences.count as f64 * fraction) as u64).max(1),
                HeldOut::Nothing | HeldOut::Documents(_) => 0,
            };
            let drawn = drawn.map(|stream| Sequences::new(stream, config.sequence_length, config.packing));
            if sequences.count <= at_end {
                let sequences = (&sequences, drawn.as_ref(), at_end);
                return Err(too_short(config, source.subject(), range, &dataset.documents, sequences));
            }
            let training = sequences.count - at_end;
            dataset.sources.push(TrainingSource { sequences: training, stops: source.stops });
            held_out.push((source.name.clone(), at_end, drawn));
            dataset.streams.push(sequences);
        }
        for (source, (name, at_end, drawn)) in held_out.into_iter().enumerate() {
            let training = dataset.sources[source].sequences;
            if at_end > 0 {
                dataset.hold_out_end(name, source, training..training + at_end, config.evaluation_max_sequences);
            } else if let Some(drawn) = drawn {
                dataset.hold_out(name, false, drawn, config);
            }
        }
        for (files, range) in config.held_out_files.iter().zip(of_files) {
            let stream = TokenStream::of_documents(&dataset.documents, range.clone());
            let sequences = Sequences::new(stream, config.sequence_length, config.packing);
            if sequences.count == 0 {
                return Err(DataError::HeldOutTooShort {
                    subject: files.subject(),
                    tokens: sequences.stream.tokens(),
                    sequence_length: config.sequence_length,
                });
            }
            dataset.hold_out(files.name.clone(), true, sequences, config);
        }
        dataset.choose_held_out_loss(config);
        Ok(dataset)
    }

    /// The documents of a source that are not held out, and the documents drawn to be held out.
    fn training_stream(
        &self,
        config: &DataConfig,
        hashes: Option<&DocumentHashes>,
        documents: Range<u64>,
    ) -> (TokenStream, Option<TokenStream>) {
        match (config.held_out, hashes) {
            (HeldOut::Documents(fraction), Some(hashes)) => {
                // a packed sequence has a target for its last input
                let least_tokens = if config.packing { config.sequence_length as u64 + 1 } else { 2 };
                let share = Share { fraction, seed: config.seed, least_tokens };
                let Split { training, held_out } = split(&self.documents, hashes, documents, share);
                (training, Some(held_out))
            }
            _ => (TokenStream::of_documents(&self.documents, documents), None),
        }
    }

    /// The same dataset without the loss of `documents`, which are given by index. In training, their tokens are not
    /// targets, and so a step's mean covers only the remaining targets. The sequences, the microbatches and the
    /// held-out part stay the same.
    pub fn without(self, documents: BTreeSet<u64>) -> Dataset {
        Dataset { without: documents, ..self }
    }

    /// Sequences to train on, of all sources together.
    pub fn training_sequences(&self) -> u64 {
        self.epoch_lengths().iter().sum()
    }

    /// Sequences per epoch of each source.
    pub fn epoch_lengths(&self) -> Vec<u64> {
        self.sources.iter().map(|source| source.sequences).collect()
    }

    /// The number of sequences of each source that training reads up to `position`.
    pub fn sequences_read(&self, position: u64) -> Vec<u64> {
        self.mixture.counts(position)
    }

    /// The number of sequences after which training ends because a source that stops is exhausted, with the index of
    /// the source. `None` if that is not before `end`.
    pub fn exhausted_before(&self, end: u64) -> Option<(u64, usize)> {
        let stopping = self.sources.iter().enumerate().filter(|(_, source)| source.stops);
        let exhausted = stopping.filter_map(|(index, source)| {
            let is_within = |position: u64| self.mixture.counts(position)[index] <= source.sequences;
            let end = end.min(self.mixture.exceeds_before(index, source.sequences));
            (!is_within(end)).then(|| (last_where(end, is_within), index))
        });
        exhausted.min()
    }

    /// Tokens of all sources before the sequences that are held out from their ends.
    pub fn training_tokens(&self) -> u64 {
        let tokens = |(source, sequences): (&TrainingSource, &Sequences)| {
            if source.sequences == sequences.count {
                return sequences.stream.tokens();
            }
            sequences.token_range(source.sequences).start
        };
        self.sources.iter().zip(&self.streams).map(tokens).sum()
    }

    /// The plan of the step that starts after `position` sequences: `global_batch` sequences of the sources in their
    /// proportions, and of each source in the order of `seed`, the first ones in the first microbatch. If
    /// `microbatches` doesn't divide `global_batch`, the microbatches' numbers of rows differ by one.
    pub fn step_plan(&self, seed: u64, position: u64, global_batch: usize, microbatches: usize) -> BatchPlan {
        let at = |row: usize| {
            let (source, before) = self.mixture.at(position + row as u64);
            let seed = order::seed_of_source(seed, source);
            SequenceId { stream: source, index: order::sequence_at(seed, before, self.sources[source].sequences) }
        };
        let first_row = |microbatch: usize| microbatch * global_batch / microbatches;
        self.plan((0..microbatches).map(|m| (first_row(m)..first_row(m + 1)).map(at).collect()).collect())
    }

    /// Number of tokens of document `index` of the corpus, including the tokens that begin and end it.
    pub fn document_tokens(&self, index: u64) -> u64 {
        self.documents.start(index + 1) - self.documents.start(index)
    }
}

/// Checks the numbers that the schema of a job bounds, and that each held-out set has a name of its own.
fn check(config: &DataConfig) -> Result<(), DataError> {
    if config.sequence_length == 0 {
        return Err(DataError::Invalid { problem: "data.sequenceLength is 0: it must be at least 1".into() });
    }
    let is_of_source = |name: &str| config.sources.iter().any(|source| source.name == name);
    let of_source = config.held_out_files.iter().find(|files| !files.name.is_empty() && is_of_source(&files.name));
    match (config.held_out, of_source) {
        (HeldOut::Documents(_) | HeldOut::LastSequences(_), Some(files)) => {
            let problem = format!(
                "data.evaluation.sets: the name {} is that of a source, whose held-out part has a loss of its own: give the set another",
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

/// The error of a source whose `documents` leave no sequence to train on beside the held-out ones.
fn too_short(
    config: &DataConfig,
    subject: String,
    documents: &Range<u64>,
    offsets: &DocumentOffsets,
    (sequences, drawn, at_end): (&Sequences, Option<&Sequences>, u64),
) -> DataError {
    let drawn = drawn.map_or(0, |drawn| drawn.count);
    DataError::TooShort {
        subject,
        tokens: offsets.start(documents.end) - offsets.start(documents.start),
        documents: documents.end - documents.start,
        sequences: sequences.count + drawn,
        sequence_length: config.sequence_length,
        held_out: drawn + at_end.min(sequences.count),
    }
}

/// The largest number up to `end` for which `holds` holds. It holds for 0, and for all numbers below that one.
fn last_where(end: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
