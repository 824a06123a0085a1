//! The instructions of a step, and their text form, which is torch's (`_Action` of torch.distributed.pipelining).

use std::fmt;
use std::str::FromStr;

/// One microbatch in one chunk. `chunk` is torch's `stage_index`: a virtual stage, counted over the whole pipeline.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// The contiguous layers that compute, 0 at the embedding.
    pub chunk: usize,
    /// The part of the step's batch, 0 first.
    pub microbatch: usize,
}

/// What a rank does next. A rank's actions for one step, in order, are its program.
///
/// The chunk of a send or receive is that of the rank that executes it: `0SEND_F3` on chunk 0 pairs with `1RECV_F3`
/// on chunk 1, and `1SEND_B3` with `0RECV_B3`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// `0F1`: forward; keeps what the backward needs. On the last chunk it also computes the loss.
    Forward(Unit),
    /// `0B1`: the whole backward: the gradient of the input and those of the weights.
    Backward(Unit),
    /// `0I1`: only the gradient of the input, which the previous chunk waits for.
    BackwardInput(Unit),
    /// `0W1`: the gradients of the weights that an `I` left undone.
    BackwardWeight(Unit),
    /// `0SEND_F1`: hands the output to the next chunk; returns at once unless too many messages wait on the edge.
    SendForward(Unit),
    /// `1RECV_F1`: posts the receive of the previous chunk's output; never waits. The forward that needs it does.
    RecvForward(Unit),
    /// `1SEND_B1`: hands the gradient of the input to the previous chunk.
    SendBackward(Unit),
    /// `0RECV_B1`: posts the receive of the gradient of the output.
    RecvBackward(Unit),
    /// `REDUCE_TIED`: the ranks of the first and the last chunk exchange the gradients of the shared embedding.
    ReduceTied,
    /// `EXCHANGE`: norms and votes up, clip factor and flags down; every rank waits for all.
    Exchange,
    /// `UPDATE`: the optimizer.
    Update,
    /// `SNAPSHOT`: the step's boundary, where a due checkpoint is copied.
    Snapshot,
}

/// The directed connection between two neighbouring chunks; its messages keep their order.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The chunk that sends.
    pub from: usize,
    /// The chunk that receives.
    pub to: usize,
}

impl Action {
    /// The (chunk, microbatch) that it works on; none for the actions that belong to the step.
    pub fn unit(self) -> Option<Unit> {
        match self {
            Action::Forward(unit)
            | Action::Backward(unit)
            | Action::BackwardInput(unit)
            | Action::BackwardWeight(unit)
            | Action::SendForward(unit)
            | Action::RecvForward(unit)
            | Action::SendBackward(unit)
            | Action::RecvBackward(unit) => Some(unit),
            Action::ReduceTied | Action::Exchange | Action::Update | Action::Snapshot => None,
        }
    }

    /// Whether it is one of F, B, I and W: all that a schedule and a CSV hold.
    pub fn is_compute(self) -> bool {
        matches!(self, Action::Forward(_) | Action::Backward(_) | Action::BackwardInput(_) | Action::BackwardWeight(_))
    }

    /// Whether it sends.
    pub fn is_send(self) -> bool {
        matches!(self, Action::SendForward(_) | Action::SendBackward(_))
    }

    /// Whether it posts a receive.
    pub fn is_recv(self) -> bool {
        matches!(self, Action::RecvForward(_) | Action::RecvBackward(_))
    }

    /// Whether it leaves its unit's weight gradients complete (B or W).
    pub fn completes_gradient(self) -> bool {
        matches!(self, Action::Backward(_) | Action::BackwardWeight(_))
    }

    /// The edge that a send or receive uses. None for everything else, and where chunk 0 would face what is before it.
    pub fn edge(self) -> Option<Edge> {
        let (from, to) = match self {
            Action::SendForward(u) => (u.chunk, u.chunk.checked_add(1)?),
            Action::RecvForward(u) => (u.chunk.checked_sub(1)?, u.chunk),
            Action::SendBackward(u) => (u.chunk, u.chunk.checked_sub(1)?),
            Action::RecvBackward(u) => (u.chunk.checked_add(1)?, u.chunk),
            _ => return None,
        };
        Some(Edge { from, to })
    }

    /// The receive that pairs with a send, and the send that pairs with a receive.
    pub fn counterpart(self) -> Option<Action> {
        let edge = self.edge()?;
        let at = |chunk| Unit { chunk, ..self.unit().unwrap_or(Unit { chunk, microbatch: 0 }) };
        Some(match self {
            Action::SendForward(_) => Action::RecvForward(at(edge.to)),
            Action::RecvForward(_) => Action::SendForward(at(edge.from)),
            Action::SendBackward(_) => Action::RecvBackward(at(edge.to)),
            _ => Action::SendBackward(at(edge.from)),
        })
    }

    /// `F`, `SEND_B`, `EXCHANGE`: the text form without its numbers.
    pub fn kind(self) -> &'static str {
        match self {
            Action::Forward(_) => "F",
            Action::Backward(_) => "B",
            Action::BackwardInput(_) => "I",
            Action::BackwardWeight(_) => "W",
            Action::SendForward(_) => "SEND_F",
            Action::RecvForward(_) => "RECV_F",
            Action::SendBackward(_) => "SEND_B",
            Action::RecvBackward(_) => "RECV_B",
            Action::ReduceTied => "REDUCE_TIED",
            Action::Exchange => "EXCHANGE",
            Action::Update => "UPDATE",
            Action::Snapshot => "SNAPSHOT",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit() {
            Some(unit) => write!(f, "{}{}{}", unit.chunk, self.kind(), unit.microbatch),
            None => f.write_str(self.kind()),
        }
    }
}

/// Why a piece of text is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an action: write chunk, kind and microbatch like 0F1, 0B1, 1I2, 1W2, 0SEND_F1, 1RECV_F1, \
     1SEND_B1 or 0RECV_B1, or one of REDUCE_TIED, EXCHANGE, UPDATE and SNAPSHOT"
)]
pub struct ActionError {
    /// What was found.
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
    let unit =
        Unit { chunk: text[..text.len() - rest.len()].parse().ok()?, microbatch: rest[kind.len()..].parse().ok()? };
    Some(match kind {
        "F" => Action::Forward(unit),
        "B" => Action::Backward(unit),
        "I" => Action::BackwardInput(unit),
        "W" => Action::BackwardWeight(unit),
        "SEND_F" => Action::SendForward(unit),
        "RECV_F" => Action::RecvForward(unit),
        "SEND_B" => Action::SendBackward(unit),
        "RECV_B" => Action::RecvBackward(unit),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_torchs() {
        let unit = Unit { chunk: 12, microbatch: 305 };
        for (action, text) in [
            (Action::Forward(unit), "12F305"),
            (Action::Backward(unit), "12B305"),
            (Action::BackwardInput(unit), "12I305"),
            (Action::BackwardWeight(unit), "12W305"),
            (Action::SendForward(unit), "12SEND_F305"),
            (Action::RecvForward(unit), "12RECV_F305"),
            (Action::SendBackward(unit), "12SEND_B305"),
            (Action::RecvBackward(unit), "12RECV_B305"),
            (Action::ReduceTied, "REDUCE_TIED"),
            (Action::Exchange, "EXCHANGE"),
            (Action::Update, "UPDATE"),
            (Action::Snapshot, "SNAPSHOT"),
        ] {
            assert_eq!(action.to_string(), text);
            assert_eq!(text.parse(), Ok(action));
        }
    }

    #[test]
    fn what_is_no_action_is_named() {
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

    #[test]
    fn a_send_and_its_receive_name_each_other() {
        let pair = |a: &str, b: &str| {
            let (a, b): (Action, Action) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!((a.counterpart(), b.counterpart()), (Some(b), Some(a)));
            assert_eq!(a.edge(), b.edge());
        };
        pair("0SEND_F3", "1RECV_F3");
        pair("1SEND_B3", "0RECV_B3");
        for alone in ["0RECV_F1", "0SEND_B1", "0F1", "EXCHANGE"] {
            assert_eq!(alone.parse::<Action>().unwrap().counterpart(), None);
        }
    }
}
