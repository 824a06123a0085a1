//! A reader that compares the bytes of a whole file with the file's digest.

use std::io::{self, ErrorKind, Read};

use crate::digest::{Digest, Hasher};

/// A reader of a whole file. The reader returns the last bytes only if all bytes have the digest of the file.
pub(crate) struct DigestReader<R, F> {
    inner: R,
    /// The hasher of the bytes; `None` after all bytes are hashed.
    hasher: Option<Hasher>,
    expected: Digest,
    remaining: u64,
    /// The digest of all bytes, if it differs from `expected`.
    wrong: Option<Digest>,
    /// The function that makes the error for a wrong digest.
    differs: F,
}

impl<R: Read, F: Fn(&R, &Digest) -> io::Error> DigestReader<R, F> {
    pub(crate) fn new(inner: R, expected: &Digest, size: u64, differs: F) -> DigestReader<R, F> {
        let hasher = Some(Hasher::like(expected, size));
        DigestReader { inner, hasher, expected: expected.clone(), remaining: size, wrong: None, differs }
    }
}

impl<R: Read, F: Fn(&R, &Digest) -> io::Error> Read for DigestReader<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut count = 0;
        if self.remaining > 0 {
            count = self.inner.read(buffer)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&buffer[..count]);
            }
            self.remaining = self.remaining.saturating_sub(count as u64);
        }
        if self.remaining == 0
            && let Some(hasher) = self.hasher.take()
        {
            self.wrong = Some(hasher.finish()).filter(|found| *found != self.expected);
        }
        match &self.wrong {
            Some(found) => Err((self.differs)(&self.inner, found)),
            None => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    fn verified<'a>(bytes: &'a [u8], size: u64) -> impl Read + 'a {
        DigestReader::new(bytes, &Digest::from_hex(HELLO).unwrap(), size, |_, found| {
            io::Error::other(found.to_string())
        })
    }

    #[test]
    fn the_last_bytes_come_only_if_all_are_right() {
        let mut bytes = Vec::new();
        verified(b"hello\n", 6).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"hello\n");

        let mut reader = verified(b"hellO\n", 6);
        reader.read_exact(&mut [0; 5]).unwrap();
        for _ in 0..2 {
            let error = reader.read(&mut [0; 5]).unwrap_err();
            assert!(error.to_string().starts_with("sha256:"), "{error}");
        }
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let error = verified(b"hell", 6).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_empty_file_is_verified_too() {
        assert!(verified(b"", 0).read(&mut [0]).is_err());
    }
}
