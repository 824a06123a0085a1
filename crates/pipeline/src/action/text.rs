//! Converts actions to text and back, in the form of torch's `_Action`.

use std::fmt;
use std::str::FromStr;

use super::Action;
use crate::work_item::WorkItem;

impl Action {
    /// Returns the kind of the action (torch's `_ComputationType`), such as `F`, `SEND_B` or `EXCHANGE`: the text form
    /// without its numbers.
    pub fn computation_type(self) -> &'static str {
        match self {
            Action::Forward(_) => "F",
            Action::FullBackward(_) => "B",
            Action::BackwardInput(_) => "I",
            Action::BackwardWeight(_) => "W",
            Action::SendForward(_) => "SEND_F",
            Action::RecvForward(_) => "RECV_F",
            Action::SendBackward(_) => "SEND_B",
            Action::RecvBackward(_) => "RECV_B",
            Action::Reduce(_) => "REDUCE",
            Action::ReduceTied => "REDUCE_TIED",
            Action::Exchange => "EXCHANGE",
            Action::Update => "UPDATE",
            Action::Gather(_) => "GATHER",
            Action::Snapshot => "SNAPSHOT",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(chunk) = self.chunk() {
            write!(f, "{chunk}")?;
        }
        f.write_str(self.computation_type())?;
        self.item().map_or(Ok(()), |item| write!(f, "{}", item.microbatch))
    }
}

/// An error that occurs while an action is parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an action: write chunk, kind and microbatch like 0F1, 0B1, 1I2, 1W2, 0SEND_F1, 1RECV_F1, \
     1SEND_B1 or 0RECV_B1, a chunk and REDUCE or GATHER like 0REDUCE, or one of REDUCE_TIED, EXCHANGE, UPDATE and \
     SNAPSHOT"
)]
pub struct ActionError {
    /// The invalid text.
    pub text: String,
}

impl FromStr for Action {
    type Err = ActionError;

    fn from_str(text: &str) -> Result<Self, ActionError> {
        parse(text).ok_or_else(|| ActionError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Action> {
    match text {
        "REDUCE_TIED" => return Some(Action::ReduceTied),
        "EXCHANGE" => return Some(Action::Exchange),
        "UPDATE" => return Some(Action::Update),
        "SNAPSHOT" => return Some(Action::Snapshot),
        _ => {}
    }
    let digit = |c: char| c.is_ascii_digit();
    let rest = text.trim_start_matches(digit);
    let kind = rest.trim_end_matches(digit);
    let chunk = text[..text.len() - rest.len()].parse().ok()?;
    match rest {
        "REDUCE" => return Some(Action::Reduce(chunk)),
        "GATHER" => return Some(Action::Gather(chunk)),
        _ => {}
    }
    let item = WorkItem { chunk, microbatch: rest[kind.len()..].parse().ok()? };
    Some(match kind {
        "F" => Action::Forward(item),
        "B" => Action::FullBackward(item),
        "I" => Action::BackwardInput(item),
        "W" => Action::BackwardWeight(item),
        "SEND_F" => Action::SendForward(item),
        "RECV_F" => Action::RecvForward(item),
        "SEND_B" => Action::SendBackward(item),
        "RECV_B" => Action::RecvBackward(item),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_torchs() {
        let item = WorkItem { chunk: 12, microbatch: 305 };
        for (action, text) in [
            (Action::Forward(item), "12F305"),
            (Action::FullBackward(item), "12B305"),
            (Action::BackwardInput(item), "12I305"),
            (Action::BackwardWeight(item), "12W305"),
            (Action::SendForward(item), "12SEND_F305"),
            (Action::RecvForward(item), "12RECV_F305"),
            (Action::SendBackward(item), "12SEND_B305"),
            (Action::RecvBackward(item), "12RECV_B305"),
            (Action::Reduce(12), "12REDUCE"),
            (Action::ReduceTied, "REDUCE_TIED"),
            (Action::Exchange, "EXCHANGE"),
            (Action::Update, "UPDATE"),
            (Action::Gather(12), "12GATHER"),
            (Action::Snapshot, "SNAPSHOT"),
        ] {
            assert_eq!(action.to_string(), text);
            assert_eq!(text.parse(), Ok(action));
        }
    }

    #[test]
    fn invalid_action_text_is_reported() {
        for text in [
            "",
            "F",
            "0F",
            "F0",
            "0f1",
            "0X1",
            "0F1 ",
            "0F-1",
            "0F1.5",
            "SEND_F0",
            "0EXCHANGE",
            "REDUCE",
            "GATHER",
            "0REDUCE1",
            "0REDUCE_TIED",
            "exchange",
            "99999999999999999999F0",
            "٣F1",
            "0F٣",
            "0UNSHARD",
            "(0F1;1B2)OVERLAP_F_B",
        ] {
            let error = text.parse::<Action>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("`{text}` is not an action")));
        }
    }
}
