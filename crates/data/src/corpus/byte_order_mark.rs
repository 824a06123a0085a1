//! The byte order mark at the start of a file, which shows the file's encoding. In UTF-8 the mark is not part of the
//! text (RFC 3629, section 6).

use std::io::Read;

use super::CorpusFile;
use crate::error::DataError;

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Marks of other encodings, with the names that `iconv` uses. The longer marks come first, because a UTF-16 mark is
/// the start of a UTF-32 mark.
const OTHERS: [(&[u8], &str); 4] =
    [(b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];

/// Where reading begins that starts at `offset`: at the start of a file, after its mark.
///
/// # Errors
/// `OtherEncoding` if the mark belongs to an encoding other than UTF-8, or an I/O error if the file can't be read.
pub(super) fn skip(corpus_file: &CorpusFile, offset: u64) -> Result<u64, DataError> {
    if offset > 0 {
        return Ok(offset);
    }
    let failed = || DataError::io("read", &corpus_file.path);
    let mut start = Vec::new();
    corpus_file.open_at(0).and_then(|file| file.take(4).read_to_end(&mut start)).map_err(failed())?;
    match OTHERS.iter().find(|(mark, _)| start.starts_with(mark)) {
        Some((_, encoding)) => Err(DataError::OtherEncoding { path: corpus_file.path.clone(), encoding }),
        None if start.starts_with(BYTE_ORDER_MARK) => Ok(BYTE_ORDER_MARK.len() as u64),
        None => Ok(0),
    }
}
