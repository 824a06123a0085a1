//! Conversations to tokens.

use crate::conversation::{Content, Conversation, Messages};
use crate::error::{Refusal, Turn};
use crate::mask::{Proof, Rendering, Whole};
use crate::shield::{Marked, Reach};
use crate::template::{ChatTemplate, Variables};
use crate::vocabulary::Vocabulary;

/// A tokenizer with its chat template.
pub struct Chat {
    template: Option<ChatTemplate>,
    vocabulary: Vocabulary,
}

/// The tokens of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The ids.
    pub ids: Vec<u32>,
    /// For each token whether it is trained on.
    pub trained: Vec<bool>,
    /// For each message the number of tokens up to its end. The conversation cut there has the tokens of its first
    /// messages alone. `None` where the template changes earlier text at later messages, so that a cut is none. A
    /// prompt and a completion that are texts count as two messages.
    pub turn_ends: Vec<Option<usize>>,
}

impl Chat {
    /// Joins a template and a tokenizer. Without a template only prompts and completions that are texts have tokens.
    pub fn new(template: Option<ChatTemplate>, vocabulary: Vocabulary) -> Chat {
        Chat { template, vocabulary }
    }

    /// The tokens of a conversation, trained on where the assistant writes. Neither BOS nor EOS is added to the text
    /// of the template, or to a prompt with its completion.
    ///
    /// # Errors
    /// Names the reason why the conversation has no tokens, or the turn whose mask can't be proven.
    pub fn tokens(&self, conversation: &Conversation) -> Result<Tokens, Refusal> {
        let tokens = match &conversation.0 {
            Content::Texts { prompt, completion } => self.of_texts(prompt, completion)?,
            Content::Messages(messages) => self.of_messages(messages)?,
        };
        if tokens.trained.contains(&true) { Ok(tokens) } else { Err(Refusal::NothingTrained) }
    }

    /// The ids after which the assistant's next message begins.
    ///
    /// # Errors
    /// Names the reason why the conversation has no tokens.
    pub fn prompt(&self, conversation: &Conversation) -> Result<Vec<u32>, Refusal> {
        match &conversation.0 {
            Content::Texts { prompt, .. } => Ok(self.vocabulary.encode(prompt, &[])?.ids),
            Content::Messages(messages) => {
                let rendering = self.rendering(self.template()?, messages, true)?;
                Ok(self.vocabulary.encode(&rendering.text, &rendering.special)?.ids)
            }
        }
    }

    fn template(&self) -> Result<&ChatTemplate, Refusal> {
        self.template.as_ref().ok_or(Refusal::NoTemplate)
    }

    fn of_texts(&self, prompt: &str, completion: &str) -> Result<Tokens, Refusal> {
        let rendering = Rendering { text: [prompt, completion].concat(), spans: Vec::new(), special: Vec::new() };
        let encoded = self.vocabulary.encode(&rendering.text, &[])?;
        let whole = Whole { vocabulary: &self.vocabulary, rendering: &rendering, encoded: &encoded };
        let turn = || Turn { number: 2, role: "completion".into() };
        let start = whole.end_of(prompt).map_err(|problem| Refusal::Unproven { turn: turn(), problem })?.tokens;
        let count = encoded.ids.len();
        let trained = (0..count).map(|token| token >= start).collect();
        Ok(Tokens { ids: encoded.ids, trained, turn_ends: vec![Some(start), Some(count)] })
    }

    fn of_messages(&self, messages: &Messages) -> Result<Tokens, Refusal> {
        let template = self.template()?;
        let rendering = self.rendering(template, messages, false)?;
        let encoded = self.vocabulary.encode(&rendering.text, &rendering.special)?;
        let whole = Whole { vocabulary: &self.vocabulary, rendering: &rendering, encoded: &encoded };
        let proof = Proof::new(template, messages, whole);
        let spans = proof.trained()?;
        let trained = (0..encoded.ids.len()).map(|token| spans.iter().any(|span| span.contains(&token))).collect();
        let turn_ends = proof.ends.iter().map(|end| end.as_ref().ok().map(|place| place.tokens)).collect();
        Ok(Tokens { ids: encoded.ids, trained, turn_ends })
    }

    /// The rendered conversation, with the special tokens that the template has written itself.
    ///
    /// # Errors
    /// Fails if the template refuses the conversation, or if it writes something else where twins stand for the special
    /// tokens that messages spell.
    fn rendering(
        &self,
        template: &ChatTemplate,
        conversation: &Messages,
        add_generation_prompt: bool,
    ) -> Result<Rendering, Refusal> {
        let Messages { messages, tools, documents, .. } = conversation;
        self.check_roles(conversation)?;
        let plain = self.render(template, &Variables { messages, tools, documents, add_generation_prompt })?;
        for reach in [Reach::All, Reach::Tokens] {
            let shield = &self.vocabulary.shield;
            let [tools, documents] = [tools, documents].map(|value| shield.value(value, reach));
            let messages = &shield.messages(messages, reach);
            let shielded = Variables { messages, tools: &tools, documents: &documents, add_generation_prompt };
            match self.render(template, &shielded) {
                Ok(marked) if marked.text == plain.text && marked.spans == plain.spans => {
                    let special = self.vocabulary.find(&marked.shadow);
                    return Ok(Rendering { text: plain.text, spans: plain.spans, special });
                }
                _ => {}
            }
        }
        let mut values = messages.iter().chain([tools, documents]);
        let token = values.find_map(|value| self.vocabulary.shield.part_in(value)).unwrap_or_default();
        Err(Refusal::Inspected { token: token.into() })
    }

    fn render(&self, template: &ChatTemplate, variables: &Variables) -> Result<Marked, Refusal> {
        let rendered = template.render(variables)?;
        let problem = || Refusal::Template { problem: "it cuts the text of a {% generation %} block".into() };
        self.vocabulary.shield.read(&rendered).ok_or_else(problem)
    }

    fn check_roles(&self, conversation: &Messages) -> Result<(), Refusal> {
        for index in 0..conversation.messages.len() {
            if let Some(token) = self.vocabulary.shield.token_in(conversation.role(index)) {
                let place = format!("message {}", index + 1);
                let problem = format!("has a role with the special token {token:?}: expected a role such as user");
                return Err(Refusal::Malformed { place, problem });
            }
        }
        Ok(())
    }
}
