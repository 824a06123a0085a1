//! The secret in the page's address. Each process that serves a page draws a new token. The token is valid until the
//! process exits.

use std::fmt;

/// The number of random bytes of a token.
const BYTES: usize = 16;

/// A secret without which the page can't be requested.
#[derive(Clone)]
pub(super) struct PageToken(String);

impl PageToken {
    /// Draws a token from the operating system's generator.
    ///
    /// # Errors
    /// Fails if the generator returns an error.
    pub(super) fn draw() -> std::io::Result<PageToken> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(PageToken(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Whether `guess` is the token. This function compares hashes in constant time, and so its duration does not
    /// reveal the position of a difference.
    pub(super) fn is(&self, guess: &str) -> bool {
        blake3::hash(guess.as_bytes()) == blake3::hash(self.0.as_bytes())
    }

    /// Returns the secret, for the printed address.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

/// Writes a fixed word instead of the secret.
impl fmt::Debug for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let (token, other) = (PageToken::draw().unwrap(), PageToken::draw().unwrap());
        assert!(token.is(token.reveal()) && token.reveal().len() == 2 * BYTES);
        for guess in ["", other.reveal(), &token.reveal()[1..], &format!("{}0", token.reveal())] {
            assert!(!token.is(guess), "{guess}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }
}
