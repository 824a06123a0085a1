//! The tokens that begin, end and pad documents: their names in Hugging Face's files, and the tokens that a job names.

/// The names of the tokens that begin, end and pad documents.
pub(crate) const BOS_KEY: &str = "bos_token";
pub(crate) const EOS_KEY: &str = "eos_token";
pub(crate) const PAD_KEY: &str = "pad_token";

/// The texts of the tokens that begin, end and pad documents, as the job names them. A text that is not `None`
/// overrides the token that the files beside the tokenizer name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedTokens {
    /// The token that begins each document.
    pub bos: Option<String>,
    /// The token that ends each document.
    pub eos: Option<String>,
    /// The token that pads rows.
    pub pad: Option<String>,
}

impl NamedTokens {
    /// Returns the texts of the named tokens by the names that Hugging Face uses, such as `bos_token`.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let NamedTokens { bos, eos, pad } = self;
        [(BOS_KEY, bos), (EOS_KEY, eos), (PAD_KEY, pad)]
            .into_iter()
            .filter_map(|(key, text)| Some((key, text.as_deref()?)))
    }
}
