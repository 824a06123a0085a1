//! The secret in the page's address. Each process that serves a page draws a new token, which ends with the process.

use std::fmt;

/// Random bytes of a token.
const BYTES: usize = 16;

/// A secret without which the page can't be requested.
#[derive(Clone)]
pub(super) struct Token(String);

impl Token {
    /// Draws a token from the operating system's generator.
    ///
    /// # Errors
    /// If the generator has no randomness.
    pub(super) fn draw() -> std::io::Result<Token> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Whether `guess` is the token. The duration does not reveal the position of a difference, because the function
    /// compares hashes in constant time.
    pub(super) fn is(&self, guess: &str) -> bool {
        blake3::hash(guess.as_bytes()) == blake3::hash(self.0.as_bytes())
    }

    /// The secret, for the printed address.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

/// Omits the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let (token, other) = (Token::draw().unwrap(), Token::draw().unwrap());
        assert!(token.is(token.reveal()) && token.reveal().len() == 2 * BYTES);
        for guess in ["", other.reveal(), &token.reveal()[1..], &format!("{}0", token.reveal())] {
            assert!(!token.is(guess), "{guess}");
        }
        assert_eq!(format!("{token:?}"), "Token");
    }
}
