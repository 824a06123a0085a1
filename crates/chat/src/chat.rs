//! Converts conversations to tokens.

use std::ops::Range;

use crate::conversation::{Conversation, ConversationForm, Messages};
use crate::error::{ConversationError, MessageRef};
use crate::mask::{Proof, Rendering, Whole};
use crate::shield::{Marked, Reach};
use crate::template::{ChatTemplate, RenderContext};
use crate::vocabulary::{Encoded, Vocabulary};

/// A tokenizer with its chat template.
pub struct Chat {
    template: Option<ChatTemplate>,
    vocabulary: Vocabulary,
}

/// The tokens of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The token ids.
    pub ids: Vec<u32>,
    /// For each token, whether it is trained on.
    pub trained: Vec<bool>,
    /// For each message, the number of tokens up to its end. The tokens up to this end equal the tokens of a
    /// conversation that ends with this message. `None` for a message at which the conversation can't be cut, for
    /// example because the template changes earlier text when later messages follow. A prompt and a completion that are
    /// texts count as two messages. The list is empty if the caller requests no ends.
    pub turn_ends: Vec<Option<usize>>,
    /// The text that was encoded.
    pub text: String,
    /// For each token, the range of its bytes in the text. A character outside of all ranges has no token.
    pub ranges: Vec<Range<usize>>,
}

/// The part of a conversation's [`Tokens`] that a caller needs. To find the ends of turns, the chat renders the
/// conversation once more for each turn, up to the end of that turn. If the template has no `{% generation %}` blocks,
/// the mask needs such renderings too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedTokens {
    /// No tokens, for example because the conversation has too many.
    Nothing,
    /// The ids and the mask, which is `trained`.
    Mask,
    /// The ids, the mask and the ends of turns.
    MaskAndEnds,
}

impl Chat {
    /// Creates a chat from a template and a tokenizer. Without a template, the chat can encode only prompts and
    /// completions that are texts.
    pub fn new(template: Option<ChatTemplate>, vocabulary: Vocabulary) -> Chat {
        Chat { template, vocabulary }
    }

    /// Returns the tokens of a conversation. The tokens that the assistant writes are trained on. The chat adds neither
    /// BOS nor EOS to the text that the template writes, or to a prompt and a completion that are texts.
    ///
    /// # Errors
    /// The error names the reason why the conversation can't be encoded, or the turn for which this crate can't prove
    /// which tokens the assistant writes.
    pub fn tokens(&self, conversation: &Conversation) -> Result<Tokens, ConversationError> {
        self.wanted_tokens(conversation, |_| RequestedTokens::MaskAndEnds)?.ok_or(ConversationError::NothingTrained)
    }

    /// Returns the part of a conversation's tokens that the caller needs. `wanted` gets the number of tokens, and
    /// selects the part. For [`RequestedTokens::Nothing`], this function returns `None`, and neither computes nor
    /// proves the mask. For a prompt and a completion that are texts, the tokens always have `turn_ends`.
    ///
    /// # Errors
    /// Returns the errors of [`Chat::tokens`].
    pub fn wanted_tokens(
        &self,
        conversation: &Conversation,
        wanted: impl FnOnce(usize) -> RequestedTokens,
    ) -> Result<Option<Tokens>, ConversationError> {
        let tokens = match &conversation.0 {
            ConversationForm::Texts { prompt, completion } => self.of_texts(prompt, completion, wanted)?,
            ConversationForm::Messages(messages) => self.of_messages(messages, wanted)?,
        };
        match tokens {
            Some(tokens) if !tokens.trained.contains(&true) => Err(ConversationError::NothingTrained),
            tokens => Ok(tokens),
        }
    }

    /// Returns the token ids of the conversation up to the beginning of the assistant's next message.
    ///
    /// # Errors
    /// The error names the reason why the conversation can't be encoded.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Vec<u32>, ConversationError> {
        match &conversation.0 {
            ConversationForm::Texts { prompt, .. } => Ok(self.vocabulary.encode(prompt, &[])?.ids),
            ConversationForm::Messages(messages) => {
                let variables = RenderContext::new(&messages.messages, &messages.tools, &messages.documents);
                let rendering = self.rendering(self.template()?, messages, &variables, true)?;
                Ok(self.vocabulary.encode(&rendering.text, &rendering.special)?.ids)
            }
        }
    }

    fn template(&self) -> Result<&ChatTemplate, ConversationError> {
        self.template.as_ref().ok_or(ConversationError::NoTemplate)
    }

    fn of_texts(
        &self,
        prompt: &str,
        completion: &str,
        wanted: impl FnOnce(usize) -> RequestedTokens,
    ) -> Result<Option<Tokens>, ConversationError> {
        let rendering = Rendering { text: [prompt, completion].concat(), spans: Vec::new(), special: Vec::new() };
        let encoded = self.vocabulary.encode(&rendering.text, &[])?;
        let count = encoded.ids.len();
        if wanted(count) == RequestedTokens::Nothing {
            return Ok(None);
        }
        let whole = Whole::new(&self.vocabulary, &rendering, &encoded);
        let turn = || MessageRef { number: 2, role: "completion".into() };
        let start =
            whole.end_of(prompt).map_err(|problem| ConversationError::Unproven { turn: turn(), problem })?.tokens;
        let trained = (0..count).map(|token| token >= start).collect();
        let Encoded { ids, ranges } = encoded;
        Ok(Some(Tokens { ids, trained, turn_ends: vec![Some(start), Some(count)], text: rendering.text, ranges }))
    }

    fn of_messages(
        &self,
        messages: &Messages,
        wanted: impl FnOnce(usize) -> RequestedTokens,
    ) -> Result<Option<Tokens>, ConversationError> {
        let template = self.template()?;
        let variables = RenderContext::new(&messages.messages, &messages.tools, &messages.documents);
        let rendering = self.rendering(template, messages, &variables, false)?;
        let encoded = self.vocabulary.encode(&rendering.text, &rendering.special)?;
        let wanted = wanted(encoded.ids.len());
        if wanted == RequestedTokens::Nothing {
            return Ok(None);
        }
        let whole = Whole::new(&self.vocabulary, &rendering, &encoded);
        let mut proof = Proof::new(template, messages, variables, whole);
        let turn_ends = if wanted == RequestedTokens::MaskAndEnds { proof.ends() } else { Vec::new() };
        let mut trained = vec![false; encoded.ids.len()];
        for span in proof.trained()? {
            trained.get_mut(span).unwrap_or_default().fill(true);
        }
        let Encoded { ids, ranges } = encoded;
        Ok(Some(Tokens { ids, trained, turn_ends, text: rendering.text, ranges }))
    }

    /// Renders the conversation, and finds the special tokens that the template itself has written.
    ///
    /// # Errors
    /// Fails if the template refuses the conversation. Also fails if the rendered text changes when twins (private-use
    /// characters) replace the characters of special tokens that messages spell.
    fn rendering(
        &self,
        template: &ChatTemplate,
        conversation: &Messages,
        variables: &RenderContext,
        add_generation_prompt: bool,
    ) -> Result<Rendering, ConversationError> {
        let Messages { messages, tools, documents, .. } = conversation;
        self.check_roles(conversation)?;
        let plain = self.render(template, variables, add_generation_prompt)?;
        for reach in [Reach::All, Reach::Tokens] {
            let shield = &self.vocabulary.shield;
            let [tools, documents] = [tools, documents].map(|value| shield.value(value, reach));
            let shielded = RenderContext::new(&shield.messages(messages, reach), &tools, &documents);
            match self.render(template, &shielded, add_generation_prompt) {
                Ok(marked) if marked.text == plain.text && marked.spans == plain.spans => {
                    let special = self.vocabulary.find(&marked.shadow);
                    return Ok(Rendering { text: plain.text, spans: plain.spans, special });
                }
                _ => {}
            }
        }
        let mut values = messages.iter().chain([tools, documents]);
        let token = values.find_map(|value| self.vocabulary.shield.part_in(value)).unwrap_or_default();
        Err(ConversationError::Inspected { token: token.into() })
    }

    fn render(
        &self,
        template: &ChatTemplate,
        variables: &RenderContext,
        add_generation_prompt: bool,
    ) -> Result<Marked, ConversationError> {
        let rendered = template.render(variables, variables.count(), add_generation_prompt)?;
        let problem = || ConversationError::Template { problem: "it cuts the text of a {% generation %} block".into() };
        self.vocabulary.shield.read(&rendered).ok_or_else(problem)
    }

    fn check_roles(&self, conversation: &Messages) -> Result<(), ConversationError> {
        for index in 0..conversation.messages.len() {
            if let Some(token) = self.vocabulary.shield.token_in(conversation.role(index)) {
                let place = format!("message {}", index + 1);
                let problem = format!("has a role with the special token {token:?}: expected a role such as user");
                return Err(ConversationError::Malformed { place, problem });
            }
        }
        Ok(())
    }
}
