//! The prepared corpus as a trainer sees it: which sequences a step's microbatches hold, and their token ids.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cache::{self, Prepared};
use crate::error::DataError;
use crate::map::{Documents, Ids};
use crate::order;
use crate::sequences::{Sequences, Span};
use crate::settings::Settings;

/// The target of a position that does not count: padding, and the last token of a document in a packed row.
pub const IGNORED: i64 = -100;

/// A prepared corpus, mapped from the cache. Cheap to open; any number of processes may have it open.
pub struct Dataset {
    folder: PathBuf,
    ids: Ids,
    documents: Documents,
    sequences: Sequences,
    padding: i64,
}

/// The shape of a microbatch, and where attention must not reach back.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Sequences.
    pub rows: usize,
    /// Tokens in a row, padding included.
    pub length: usize,
    /// For each row the offsets at which a document starts, except offset 0: empty where a row holds one document.
    pub documents: Vec<Vec<u32>>,
}

/// What the microbatches of one step, or of one evaluation, hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// One per microbatch.
    pub layouts: Vec<Layout>,
    /// Target tokens that count, over all microbatches: the N that the loss is divided by.
    pub targets: u64,
    /// Per microbatch, the sequence in each row.
    sequences: Vec<Vec<u64>>,
}

/// Token ids, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// Their shape.
    pub layout: Layout,
    /// `[rows, length]`.
    pub inputs: Vec<i64>,
    /// `[rows, length]`: the token after each input, [`IGNORED`] where it does not count.
    pub targets: Vec<i64>,
}

impl Dataset {
    /// Maps what [`prepare`](crate::prepare) left in `settings.cache`.
    ///
    /// # Errors
    /// A file that is missing or of the wrong size, and settings that leave nothing to train on.
    pub fn open(settings: &Settings, prepared: &Prepared) -> Result<Dataset, DataError> {
        let folder = settings.cache.join(&prepared.folder);
        let documents = Documents::open(&folder.join(cache::DOCUMENTS), prepared.documents)?;
        Ok(Dataset {
            ids: Ids::open(&folder.join(cache::IDS), prepared.tokens, prepared.id_bytes)?,
            sequences: Sequences::new(settings, &documents)?,
            documents,
            padding: i64::from(prepared.padding),
            folder,
        })
    }

    /// Sequences in an epoch.
    pub fn training_sequences(&self) -> u64 {
        self.sequences.training
    }

    /// Sequences held out for evaluation: the last ones of the corpus, never trained on.
    pub fn evaluation_sequences(&self) -> u64 {
        self.sequences.held_out
    }

    /// `tokenizer.json` and `tokenizer_config.json`.
    pub fn tokenizer_files(&self) -> (PathBuf, PathBuf) {
        (self.folder.join(cache::TOKENIZER), self.folder.join(cache::TOKENIZER_CONFIG))
    }

    /// The plan of the step that starts after `position` sequences: `global_batch` sequences in the order of `seed`, the
    /// first ones in the first microbatch. Where `microbatches` doesn't divide `global_batch`, rows differ by one.
    pub fn step(&self, seed: u64, position: u64, global_batch: usize, microbatches: usize) -> StepPlan {
        let at = |row: usize| order::sequence_at(seed, position + row as u64, self.sequences.training);
        let first_row = |microbatch: usize| microbatch * global_batch / microbatches;
        self.plan((0..microbatches).map(|m| (first_row(m)..first_row(m + 1)).map(at).collect()).collect())
    }

    /// The plan of an evaluation: the held-out sequences in the corpus's order, `rows` to a microbatch, the last with
    /// what is left. No microbatches if nothing is held out.
    pub fn evaluation(&self, rows: usize) -> StepPlan {
        let held_out: Vec<u64> = self.held_out().collect();
        self.plan(held_out.chunks(rows.max(1)).map(<[u64]>::to_vec).collect())
    }

    /// Microbatch `index` of `plan`.
    pub fn microbatch(&self, plan: &StepPlan, index: usize) -> Microbatch {
        let layout = plan.layouts[index].clone();
        let mut inputs = vec![self.padding; layout.rows * layout.length];
        let mut targets = vec![IGNORED; layout.rows * layout.length];
        for (row, &sequence) in plan.sequences[index].iter().enumerate() {
            let first = row * layout.length;
            let span = self.span(sequence);
            let ids: Vec<i64> = self.ids.span(span.start, span.length + 1).map(i64::from).collect();
            inputs[first..first + span.length].copy_from_slice(&ids[..span.length]);
            targets[first..first + span.length].copy_from_slice(&ids[1..]);
            for boundary in self.boundaries(span) {
                targets[first + boundary as usize - 1] = IGNORED;
            }
        }
        Microbatch { layout, inputs, targets }
    }

    /// The entropy, in nats, of the held-out targets' own distribution: the loss of the best guess that looks at no
    /// input. 0 if nothing is held out.
    pub fn evaluation_unigram_entropy(&self) -> f64 {
        let mut counts: Vec<u64> = Vec::new();
        let plan = self.evaluation(1);
        for index in 0..plan.layouts.len() {
            for target in self.microbatch(&plan, index).targets.into_iter().filter(|&target| target != IGNORED) {
                let target = target as usize;
                counts.resize(counts.len().max(target + 1), 0);
                counts[target] += 1;
            }
        }
        let share = |&count: &u64| count as f64 / plan.targets as f64;
        counts.iter().filter(|&&count| count > 0).map(share).map(|share| -share * share.ln()).sum()
    }

    fn held_out(&self) -> std::ops::Range<u64> {
        self.sequences.training..self.sequences.training + self.sequences.held_out
    }

    fn span(&self, sequence: u64) -> Span {
        self.sequences.span(sequence, &self.documents)
    }

    /// Where documents start among the span's targets, as offsets from its first input: 1 to `length`.
    fn boundaries(&self, span: Span) -> impl Iterator<Item = u32> + '_ {
        let last = span.start + span.length as u64;
        self.documents.starts_within(span.start + 1, last).map(move |start| (start - span.start) as u32)
    }

    fn plan(&self, sequences: Vec<Vec<u64>>) -> StepPlan {
        let mut targets = 0;
        let layouts = sequences.iter().map(|rows| {
            let spans: Vec<Span> = rows.iter().map(|&sequence| self.span(sequence)).collect();
            let length = spans.iter().map(|span| span.length).max().unwrap_or(0);
            let documents = spans.iter().map(|&span| {
                let mut boundaries: Vec<u32> = self.boundaries(span).collect();
                targets += (span.length - boundaries.len()) as u64;
                // A document that starts right after the row shortens its targets, not its attention.
                boundaries.retain(|&offset| (offset as usize) < span.length);
                boundaries
            });
            Layout { rows: rows.len(), length, documents: documents.collect() }
        });
        StepPlan { layouts: layouts.collect(), targets, sequences }
    }
}
