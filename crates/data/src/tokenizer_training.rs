//! Trains a byte-level BPE tokenizer on the corpus.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerBuilder,
};

use crate::error::DataError;
use crate::tokenizer::SPECIAL_TOKENS;

/// The smallest vocabulary: the 256 bytes and the special tokens.
pub(crate) const MIN_VOCAB_SIZE: usize = 256 + SPECIAL_TOKENS.len();

/// The version of the training, which is part of the cache key. Increment the version when training returns another
/// tokenizer for the same corpus.
pub(crate) const TRAINING_VERSION: u32 = 1;

/// The largest number of texts in the queue between the reading thread and the counting thread. The limit bounds the
/// memory.
const QUEUED_TEXTS: usize = 64;

/// Trains a tokenizer with at most `vocab_size` tokens on the texts from `read`. Returns the bytes of its
/// `tokenizer.json`. `path` is the path to which the caller will write the file, and appears only in errors. The same
/// texts give the same bytes: the order of counting has no effect, because the pair with the highest count is merged
/// first, and among equal counts the pair with the lowest ids.
///
/// # Errors
/// Fails if `read` fails, or if the tokenizers library reports an error.
pub(crate) fn train(
    vocab_size: usize,
    path: &Path,
    read: impl FnOnce(&mut dyn FnMut(&str)) -> Result<(), DataError>,
) -> Result<Vec<u8>, DataError> {
    let bad = |problem: String| DataError::Tokenizer { path: path.into(), problem };
    let failed = |error: tokenizers::Error| bad(format!("it could not be trained: {error}"));

    // This thread reads and reports progress. Another thread counts the texts that it receives.
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel::<String>(QUEUED_TEXTS);
        let counting = scope.spawn(move || train_bpe(vocab_size, receiver.into_iter()));
        read(&mut |text| {
            // This call fails only if the counting ended early. In this case, the error of the counting is returned
            // below.
            sender.send(text.to_owned()).ok();
        })?;
        drop(sender);
        counting.join().map_err(|_| bad("it could not be trained: the trainer panicked".into()))?.map_err(failed)
    })
}

/// Returns the bytes of the `tokenizer.json` of a byte-level BPE.
pub(crate) fn train_bpe(
    vocab_size: usize,
    texts: impl Iterator<Item = String> + Send,
) -> Result<Vec<u8>, tokenizers::Error> {
    let special = SPECIAL_TOKENS.map(|name| AddedToken::from(name, true)).to_vec();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .min_frequency(2)
        .special_tokens(special)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let bytes = ByteLevel::new(false, false, true);
    let mut tokenizer =
        TokenizerBuilder::<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>::new()
            .with_model(BPE::default())
            .with_pre_tokenizer(Some(bytes.into()))
            .with_decoder(Some(bytes.into()))
            .build()?;
    tokenizer.train(&mut trainer, texts)?;
    // Other programs that load the model use this post-processor. It begins a prompt with the token that begins every
    // document in training.
    let begin = TemplateProcessing::builder()
        .try_single(format!("{} $A", SPECIAL_TOKENS[0]))?
        .try_pair(format!("{} $A $B:1", SPECIAL_TOKENS[0]))?
        .special_tokens(vec![(SPECIAL_TOKENS[0], 0)])
        .build()?;
    tokenizer.with_post_processor(Some(begin));
    Ok(tokenizer.to_string(true)?.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::utils::parallelism::set_parallelism;

    proptest! {
        /// With few letters and short words, nearly every choice of a pair is a tie. Every hash map has a new seed.
        #[test]
        fn ties_and_threads_do_not_matter(texts in proptest::collection::vec("([abc]{1,9} ?){1,12}", 1..6)) {
            let trained = |texts: Vec<String>| train_bpe(MIN_VOCAB_SIZE + 60, texts.into_iter()).unwrap();
            let first = trained(texts.clone());
            prop_assert!(trained(texts.clone()) == first);
            prop_assert!(trained(texts.iter().rev().cloned().collect()) == first);
            set_parallelism(false);
            let single_threaded = trained(texts);
            set_parallelism(true);
            prop_assert!(single_threaded == first);
        }
    }
}
