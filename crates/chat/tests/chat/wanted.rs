//! Tests that a chat computes only the part of a conversation's tokens that the caller requests.

use stagecoach_chat::{ConversationError, RequestedTokens};

use crate::common::*;

const TURNS: [(&str, &str); 4] = [("user", "Hello"), ("assistant", "you"), ("user", "2+2?"), ("assistant", "4")];

/// The caller gets the number of tokens before any proof. The chat therefore proves nothing for a conversation that the
/// caller skips because it is too long.
#[test]
fn the_number_of_tokens_is_known_before_the_proof() {
    let family = family("chatml");
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let chat = chat(template, family.settings(), &family.tokenizer());
    let refused = chat.wanted_tokens(&conversation(&TURNS), |_| RequestedTokens::Mask);
    assert!(matches!(refused, Err(ConversationError::Unproven { .. })), "{refused:?}");
    let mut count = 0;
    let left_out = chat.wanted_tokens(&conversation(&TURNS), |tokens| {
        count = tokens;
        RequestedTokens::Nothing
    });
    assert_eq!(left_out, Ok(None));
    assert!(count > 16, "{count}");
}
