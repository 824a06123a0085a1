//! Encodes conversations as tokens, limits their length, and handles conversations that can't be encoded.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

use stagecoach_chat::{Chat, Conversation, ConversationError, RequestedTokens, Tokens};

use crate::config::{OnBadRecord, OnLongConversation};
use crate::corpus::{BadRecordReason, ConversationRecord};
use crate::error::DataError;
use crate::findings::{Findings, LossyEncoding};
use crate::loss_mask::marked;
use crate::template_parts::TemplateParts;

/// The tokens of a conversation, or the reason why the conversation is left out.
#[derive(Debug)]
pub(crate) enum EncodedConversation {
    /// The token ids. A bit of each id marks whether the token is trained on, see [`crate::loss_mask`]. At least one
    /// target is trained on.
    Tokens {
        tokens: Vec<u32>,
        findings: Findings,
    },
    LeftOut(BadRecordReason),
}

/// The encoder of a job's conversations.
pub(crate) struct ConversationEncoder {
    pub(crate) chat: Chat,
    /// The token before a prompt, if the prompt and its completion are texts and not lists of messages. In this case,
    /// `eos` follows the completion. `None` if the tokenizer has no such token.
    pub(crate) bos: Option<u32>,
    pub(crate) eos: u32,
    /// The largest number of tokens of a conversation: the inputs of a sequence, and the target of the last input.
    pub(crate) max_tokens: usize,
    pub(crate) on_long: OnLongConversation,
    pub(crate) on_bad: OnBadRecord,
    pub(crate) lossy_encoding: LossyEncoding,
    /// The hash of the template and its variables.
    pub(crate) template_hash: String,
    pub(crate) template_parts: TemplateParts,
    /// A text with everything that determines the tokens of a conversation.
    pub(crate) key: String,
}

impl ConversationEncoder {
    /// Returns the tokens of each conversation, computed on all processors.
    pub(crate) fn encode_all(&self, records: &[ConversationRecord]) -> Vec<Result<EncodedConversation, DataError>> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let encode = |records: &[ConversationRecord]| records.iter().map(|record| self.encode(record)).collect();
        thread::scope(|scope| {
            let chunks = records.chunks(records.len().div_ceil(threads).max(1));
            let running: Vec<_> = chunks.map(|chunk| scope.spawn(move || -> Vec<_> { encode(chunk) })).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    }

    /// Returns the tokens of a conversation, or the reason why it is left out.
    ///
    /// # Errors
    /// Fails if the job has no chat template and the record needs one, or if the template needs a date and the job has
    /// none. Also fails for a bad record, or for a conversation that is longer than a sequence, if the settings refuse
    /// such records.
    pub(crate) fn encode(&self, record: &ConversationRecord) -> Result<EncodedConversation, DataError> {
        let refused = |problem| DataError::Record {
            path: record.path.clone(),
            unit: record.unit,
            number: record.number,
            problem,
        };
        let mut tokens = match self.framed(&record.conversation) {
            Ok(Some(tokens)) => tokens,
            Ok(None) => return Ok(EncodedConversation::LeftOut(BadRecordReason::TooLong)),
            Err(setup @ (ConversationError::NoTemplate | ConversationError::NoDate)) => {
                return Err(DataError::Invalid { problem: setup.to_string() });
            }
            Err(ConversationError::NothingTrained) => {
                let has_answer = record.conversation.has_assistant() || record.conversation.is_of_texts();
                return Ok(EncodedConversation::LeftOut(match has_answer {
                    true => BadRecordReason::NothingTrained,
                    false => BadRecordReason::NoAssistant,
                }));
            }
            Err(refusal) => return self.bad_record(&refusal, refused),
        };
        let count = tokens.ids.len();
        let mut findings = Findings::default();
        if count > self.max_tokens {
            match (self.on_long, self.last_end(&tokens)) {
                (OnLongConversation::Fail, _) => return Err(refused(self.too_long(count))),
                (OnLongConversation::Truncate, Some(end)) => {
                    findings.cut_conversations = 1;
                    tokens.ids.truncate(end);
                    tokens.ranges.truncate(end);
                    // characters after the cut do not count as dropped
                    tokens.text.truncate(tokens.ranges.iter().map(|range| range.end).max().unwrap_or_default());
                }
                (OnLongConversation::Truncate | OnLongConversation::Skip, _) => {
                    return Ok(EncodedConversation::LeftOut(BadRecordReason::TooLong));
                }
            }
        }
        if !has_target(&tokens.trained[..tokens.ids.len()]) {
            return Ok(EncodedConversation::LeftOut(BadRecordReason::NothingTrained));
        }
        findings.unknown_roles(record.conversation.unknown_roles());
        self.lossy_encoding.count_unknown(&tokens.ids, &mut findings);
        if self.lossy_encoding.may_drop_characters {
            let ranges: Vec<(usize, usize)> = tokens.ranges.iter().map(|range| (range.start, range.end)).collect();
            findings.dropped(&tokens.text, &ranges);
        }
        let tokens = tokens.ids.iter().zip(&tokens.trained).map(|(&id, &trained)| marked(id, trained)).collect();
        Ok(EncodedConversation::Tokens { tokens, findings })
    }

    /// Returns the tokens of a conversation, or `None` if the conversation is left out because of its length. If a
    /// prompt and its completion are texts, the function adds `bos` and `eos`.
    fn framed(&self, conversation: &Conversation) -> Result<Option<Tokens>, ConversationError> {
        let frame = if conversation.is_of_texts() { 1 + usize::from(self.bos.is_some()) } else { 0 };
        let Some(mut tokens) = self.chat.wanted_tokens(conversation, |count| self.wanted(count + frame))? else {
            return Ok(None);
        };
        if conversation.is_of_texts() {
            if let Some(bos) = self.bos {
                tokens.ids.insert(0, bos);
                tokens.ranges.insert(0, 0..0);
                tokens.trained.insert(0, false);
                tokens.turn_ends.iter_mut().flatten().for_each(|end| *end += 1);
            }
            tokens.ids.push(self.eos);
            tokens.ranges.push(tokens.text.len()..tokens.text.len());
            tokens.trained.push(true);
            if let Some(Some(end)) = tokens.turn_ends.last_mut() {
                *end += 1;
            }
        }
        Ok(Some(tokens))
    }

    /// Returns the parts of an encoding that a conversation of `count` tokens needs. The ends of turns are needed only
    /// if the conversation is cut.
    fn wanted(&self, count: usize) -> RequestedTokens {
        match self.on_long {
            _ if count <= self.max_tokens => RequestedTokens::Mask,
            OnLongConversation::Skip => RequestedTokens::Nothing,
            OnLongConversation::Truncate => RequestedTokens::MaskAndEnds,
            // A conversation is refused for its length only after its mask is known. A conversation without a token to
            // train on, or without a proof of these tokens, is not refused for its length.
            OnLongConversation::Fail => RequestedTokens::Mask,
        }
    }

    fn bad_record(
        &self,
        refusal: &ConversationError,
        refused: impl FnOnce(String) -> DataError,
    ) -> Result<EncodedConversation, DataError> {
        match self.on_bad {
            OnBadRecord::Fail => Err(refused(refusal.to_string())),
            OnBadRecord::Skip => Ok(EncodedConversation::LeftOut(reason(refusal))),
        }
    }

    /// Returns the end of the last turn that fits, if a target before this end is trained on.
    fn last_end(&self, tokens: &Tokens) -> Option<usize> {
        let ends = tokens.turn_ends.iter().flatten().copied();
        ends.filter(|&end| end <= self.max_tokens && has_target(&tokens.trained[..end])).max()
    }

    fn too_long(&self, count: usize) -> String {
        let length = self.max_tokens - 1;
        format!(
            "the conversation has {count} tokens, more than the {length} inputs of a sequence and the target of the \
             last input: raise data.sequenceLength, or set data.onLongConversation to Truncate or Skip"
        )
    }
}

/// Returns the reason under which a refusal is counted.
pub(crate) fn reason(refusal: &ConversationError) -> BadRecordReason {
    match refusal {
        ConversationError::Malformed { .. }
        | ConversationError::Mark(_)
        | ConversationError::NoTemplate
        | ConversationError::NoDate => BadRecordReason::NoConversation,
        ConversationError::Template { .. } => BadRecordReason::RefusedByTemplate,
        ConversationError::Inspected { .. } | ConversationError::Forged { .. } => BadRecordReason::SpellsSpecialTokens,
        ConversationError::Tokenizer { .. } | ConversationError::Unproven { .. } | ConversationError::Block { .. } => {
            BadRecordReason::Unproven
        }
        ConversationError::NothingTrained => BadRecordReason::NothingTrained,
    }
}

/// Whether a token after the first is trained on. The first token is no target, because no token is before it.
fn has_target(trained: &[bool]) -> bool {
    trained.iter().skip(1).any(|&trained| trained)
}
