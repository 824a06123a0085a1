//! The byte order mark at the start of a file, which shows the file's encoding. In UTF-8 the mark is not part of the
//! text (RFC 3629, section 6).

use super::compression::NoText;

pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Marks of other encodings, with the names that `iconv` uses. The longer marks come first, because a UTF-16 mark is
/// the start of a UTF-32 mark.
const OTHERS: [(&[u8], &str); 4] =
    [(b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16")];

/// The size in bytes of the mark at the start of a text; 0 without a mark.
///
/// # Errors
/// `OtherEncoding` if the mark belongs to an encoding other than UTF-8.
pub(super) fn length(text: &[u8]) -> Result<usize, NoText> {
    match OTHERS.iter().find(|(mark, _)| text.starts_with(mark)) {
        Some((_, encoding)) => Err(NoText::OtherEncoding(encoding)),
        None if text.starts_with(BYTE_ORDER_MARK) => Ok(BYTE_ORDER_MARK.len()),
        None => Ok(0),
    }
}
