//! Marks the tokens whose loss is left out, such as a user's tokens in a conversation. In memory, the highest bit of an
//! id marks such a token. No vocabulary is so large that an id needs this bit. On disk, a bitmap beside the ids has one
//! bit for each token. The bit is 1 if the token is trained on.

use std::io::{self, Write};
use std::path::Path;

use memmap2::Mmap;

use crate::error::DataError;
use crate::map_file::map_file;

/// The name of the bitmap's file in a folder of tokens.
pub(crate) const MASK_FILE: &str = "trained.bin";

const UNTRAINED: u32 = 1 << 31;

/// Returns an id with the mark, or `id` itself if the token is trained on.
pub(crate) fn marked(id: u32, is_trained: bool) -> u32 {
    if is_trained { id } else { id | UNTRAINED }
}

/// Returns the id of a token without its mark.
pub(crate) fn id_of(token: u32) -> u32 {
    token & !UNTRAINED
}

/// Whether a token is trained on.
pub(crate) fn is_trained(token: u32) -> bool {
    token & UNTRAINED == 0
}

/// Returns the size in bytes of the bitmap of `tokens` tokens.
pub(crate) fn mask_bytes(tokens: u64) -> u64 {
    tokens.div_ceil(8)
}

/// A memory-mapped bitmap of the tokens that are trained on.
pub(crate) struct LossMask {
    map: Mmap,
}

impl LossMask {
    /// Maps the bitmap in `folder`, which has bits for `tokens` tokens.
    pub(crate) fn open(folder: &Path, tokens: u64) -> Result<LossMask, DataError> {
        Ok(LossMask { map: map_file(&folder.join(MASK_FILE), mask_bytes(tokens))? })
    }

    /// Whether the token with this index is trained on.
    pub(crate) fn is_trained(&self, token: u64) -> bool {
        bit(&self.map, token)
    }
}

/// Returns the bit with the index `index` in a bitmap.
pub(crate) fn bit(bytes: &[u8], index: u64) -> bool {
    bytes[(index / 8) as usize] >> (index % 8) & 1 == 1
}

/// Writes a bitmap bit by bit.
pub(crate) struct MaskWriter<W> {
    into: W,
    byte: u8,
    bits: u8,
}

impl<W: Write> MaskWriter<W> {
    pub(crate) fn new(into: W) -> MaskWriter<W> {
        MaskWriter { into, byte: 0, bits: 0 }
    }

    /// Writes a bit.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub(crate) fn push(&mut self, is_trained: bool) -> io::Result<()> {
        self.byte |= u8::from(is_trained) << self.bits;
        self.bits += 1;
        if self.bits == 8 { self.flush() } else { Ok(()) }
    }

    /// Writes the bits of a last, incomplete byte.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.bits > 0 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.write_all(&[self.byte])?;
        (self.byte, self.bits) = (0, 0);
        Ok(())
    }
}

/// Writes the bitmap of `tokens`, which are ids with their marks.
///
/// # Errors
/// Fails if the writer fails.
pub(crate) fn write_mask(tokens: &[u32], into: impl Write) -> io::Result<()> {
    let mut writer = MaskWriter::new(into);
    tokens.iter().try_for_each(|&token| writer.push(is_trained(token)))?;
    writer.finish()
}
