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

use crate::corpus::{Content, Corpus, Cursor};
use crate::error::DataError;
use crate::tokenizer::SPECIAL;

/// 256 bytes and the special tokens.
pub(crate) const LEAST_VOCABULARY: usize = 256 + SPECIAL.len();

/// Goes into the cache's key: raise it when another tokenizer would come out of the same corpus.
pub(crate) const RECIPE: u32 = 1;

/// Pieces of text that wait between the reader and the word counters: bounds the memory.
const QUEUE: usize = 64;

/// The bytes of a `tokenizer.json` of `vocab_size` tokens at most, those for `path`. The same corpus gives the same
/// bytes: words are counted in any order, but pairs merge by count, then by the lower ids. `read` gets the bytes read so far.
///
/// # Errors
/// What is wrong with the corpus.
pub(crate) fn train(
    corpus: &Corpus,
    vocab_size: usize,
    path: &Path,
    read: &mut dyn FnMut(u64),
) -> Result<Vec<u8>, DataError> {
    let bad = |problem: String| DataError::Tokenizer { path: path.into(), problem };
    let failed = |error: tokenizers::Error| bad(format!("it could not be trained: {error}"));

    // The reader stays on this thread, with the caller's progress; the counting takes what it is sent.
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel::<String>(QUEUE);
        let counting = scope.spawn(move || learn(vocab_size, receiver.into_iter()));
        corpus.read(Cursor::default(), true, &mut |piece| {
            if let Content::Text(text) = piece.content {
                // Fails only if the counting ended early; its own error is then returned below.
                sender.send(text.to_owned()).ok();
            }
            read(piece.done);
            Ok(())
        })?;
        drop(sender);
        counting.join().map_err(|_| bad("it could not be trained: the trainer panicked".into()))?.map_err(failed)
    })
}

pub(crate) fn learn(
    vocab_size: usize,
    texts: impl Iterator<Item = String> + Send,
) -> Result<Vec<u8>, tokenizers::Error> {
    let special = SPECIAL.map(|name| AddedToken::from(name, true)).to_vec();
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
    // For whoever loads the finished model elsewhere: a prompt begins as every document began in training.
    let begin = TemplateProcessing::builder()
        .try_single(format!("{} $A", SPECIAL[0]))?
        .try_pair(format!("{} $A $B:1", SPECIAL[0]))?
        .special_tokens(vec![(SPECIAL[0], 0)])
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
        /// Few letters and short words: nearly every choice of a pair is a tie, and hash maps are seeded anew each time.
        #[test]
        fn ties_and_threads_do_not_matter(texts in proptest::collection::vec("([abc]{1,9} ?){1,12}", 1..6)) {
            let learn = |texts: Vec<String>| learn(LEAST_VOCABULARY + 60, texts.into_iter()).unwrap();
            let first = learn(texts.clone());
            prop_assert!(learn(texts.clone()) == first);
            prop_assert!(learn(texts.iter().rev().cloned().collect()) == first);
            set_parallelism(false);
            let alone = learn(texts);
            set_parallelism(true);
            prop_assert!(alone == first);
        }
    }
}
