//! Defines the actions of a step and their text form. Computations, sends and receives have the text form of torch's
//! `_Action` (torch.distributed.pipelining).

mod text;

use crate::placement::Placement;
use crate::work_item::WorkItem;
pub use text::ActionError;

/// One action of a rank (torch's `_Action`). The program of a rank is the list of its actions for one step, in order. A
/// chunk is a group of consecutive layers on one rank (torch's `stage_index`).
///
/// A send or receive names the chunk of the rank that executes it, not the chunk at the other end of the edge:
/// `0SEND_F3` on chunk 0 pairs with `1RECV_F3` on chunk 1, and `1SEND_B3` pairs with `0RECV_B3`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// `0F1`: the forward pass, which keeps the activations for the backward pass. The last chunk also computes the
    /// loss.
    Forward(WorkItem),
    /// `0B1`: the full backward pass, which computes the gradients of the input and of the weights.
    FullBackward(WorkItem),
    /// `0I1`: the first part of a split backward pass. It computes the gradient of the input, for which the previous
    /// chunk waits.
    BackwardInput(WorkItem),
    /// `0W1`: the second part of a split backward pass. It computes the gradients of the weights, after an `I`.
    BackwardWeight(WorkItem),
    /// `0SEND_F1`: queues the output for the transfer to the next chunk. The action blocks only while
    /// [`SENDS_IN_FLIGHT`](crate::SENDS_IN_FLIGHT) earlier messages wait on its edge.
    SendForward(WorkItem),
    /// `1RECV_F1`: posts the receive of the previous chunk's output. The action does not block, because the forward
    /// pass that needs the output waits for the output.
    RecvForward(WorkItem),
    /// `1SEND_B1`: sends the gradient of the input to the previous chunk.
    SendBackward(WorkItem),
    /// `0RECV_B1`: posts the receive of the gradient of the output.
    RecvBackward(WorkItem),
    /// `0REDUCE`: the replicas send each other their sums of a chunk's gradients. The action does not block, because
    /// REDUCE_TIED and EXCHANGE wait until the owner of each parameter (the replica that updates it) has all sums.
    Reduce(usize),
    /// `REDUCE_TIED`: the ranks of the first and the last chunk exchange the gradients of the shared embedding.
    ReduceTied,
    /// `EXCHANGE`: a barrier of all ranks. Each rank sends its gradient norms and its requests, such as a request to
    /// stop. Each rank receives the clip factor and the decision on the requests.
    Exchange,
    /// `UPDATE`: runs the optimizer.
    Update,
    /// `0GATHER`: the replicas send each other a chunk's updated weights. The action does not block, because the
    /// chunk's first forward pass of the next step waits for the weights.
    Gather(usize),
    /// `SNAPSHOT`: the end of the step. After this action, the rank may copy its state for a checkpoint.
    Snapshot,
}

/// The directed connection between two neighbouring chunks. The messages of an edge keep their order.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The chunk that sends.
    pub from: usize,
    /// The chunk that receives.
    pub to: usize,
}

impl Action {
    /// Returns the chunk and microbatch of the action, or `None` for the actions of a whole step or a whole chunk.
    pub fn item(self) -> Option<WorkItem> {
        match self {
            Action::Forward(item)
            | Action::FullBackward(item)
            | Action::BackwardInput(item)
            | Action::BackwardWeight(item)
            | Action::SendForward(item)
            | Action::RecvForward(item)
            | Action::SendBackward(item)
            | Action::RecvBackward(item) => Some(item),
            Action::Reduce(_)
            | Action::ReduceTied
            | Action::Exchange
            | Action::Update
            | Action::Gather(_)
            | Action::Snapshot => None,
        }
    }

    /// Returns the chunk of the action, or `None` for the actions of a whole step.
    pub fn chunk(self) -> Option<usize> {
        match self {
            Action::Reduce(chunk) | Action::Gather(chunk) => Some(chunk),
            _ => self.item().map(|item| item.chunk),
        }
    }

    /// Whether the action is a computation: F, B, I or W. A schedule and its CSV consist of computations.
    pub fn is_compute(self) -> bool {
        matches!(
            self,
            Action::Forward(_) | Action::FullBackward(_) | Action::BackwardInput(_) | Action::BackwardWeight(_)
        )
    }

    /// Whether the action sends a message.
    pub fn is_send(self) -> bool {
        matches!(self, Action::SendForward(_) | Action::SendBackward(_))
    }

    /// Whether the action posts a receive.
    pub fn is_recv(self) -> bool {
        matches!(self, Action::RecvForward(_) | Action::RecvBackward(_))
    }

    /// Whether the action exchanges data between replicas while the rank computes (REDUCE or GATHER).
    pub fn is_between_replicas(self) -> bool {
        matches!(self, Action::Reduce(_) | Action::Gather(_))
    }

    /// Whether the rank records the action's time: computations, REDUCE, GATHER, REDUCE_TIED and EXCHANGE. The rank
    /// does not record sends and receives, because other threads execute them. It does not record UPDATE and SNAPSHOT,
    /// because it reports its times in EXCHANGE, before these actions.
    pub fn is_timed(self) -> bool {
        self.is_compute() || self.is_between_replicas() || matches!(self, Action::ReduceTied | Action::Exchange)
    }

    /// Whether the action completes the weight gradients of its item (B or W).
    pub fn completes_weight_gradient(self) -> bool {
        matches!(self, Action::FullBackward(_) | Action::BackwardWeight(_))
    }

    /// Returns the edge of a send or receive, or `None` for other actions. Also returns `None` for chunk 0's RECV_F and
    /// SEND_B, because chunk 0 has no previous chunk.
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

    /// Returns the receive that pairs with a send, or the send that pairs with a receive. Returns `None` for other
    /// actions.
    pub fn counterpart(self) -> Option<Action> {
        let edge = self.edge()?;
        let at = |chunk| WorkItem { chunk, ..self.item().unwrap_or(WorkItem { chunk, microbatch: 0 }) };
        Some(match self {
            Action::SendForward(_) => Action::RecvForward(at(edge.to)),
            Action::RecvForward(_) => Action::SendForward(at(edge.from)),
            Action::SendBackward(_) => Action::RecvBackward(at(edge.to)),
            _ => Action::SendBackward(at(edge.from)),
        })
    }

    /// Returns the receive that delivers the input of a computation from another rank: RECV_F for F, RECV_B for B and
    /// I. A program lacks this receive if the same rank produces the input.
    pub fn input_receive(self) -> Option<Action> {
        match self {
            Action::Forward(item) => Some(Action::RecvForward(item)),
            Action::FullBackward(item) | Action::BackwardInput(item) => Some(Action::RecvBackward(item)),
            _ => None,
        }
    }

    /// Returns the send that passes the result of a computation to another rank: SEND_F for F, SEND_B for B and I. A
    /// program lacks this send if the same rank consumes the result.
    pub(crate) fn output_send(self) -> Option<Action> {
        match self {
            Action::Forward(item) => Some(Action::SendForward(item)),
            Action::FullBackward(item) | Action::BackwardInput(item) => Some(Action::SendBackward(item)),
            _ => None,
        }
    }

    /// Returns the work item that needs the result of F, B, I or their sends. After a forward pass, this item is the
    /// same microbatch in the next chunk. After a backward pass, it is the same microbatch in the previous chunk.
    /// Returns `None` at the pipeline's ends, and for other actions.
    pub fn consumer(self, placement: &Placement) -> Option<WorkItem> {
        match self {
            Action::Forward(item) | Action::SendForward(item) => placement.next(item),
            Action::FullBackward(item) | Action::BackwardInput(item) | Action::SendBackward(item) => {
                placement.previous(item)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_goes_to_the_neighbouring_chunk() {
        let placement = Placement::linear(2);
        let consumer = |text: &str| text.parse::<Action>().unwrap().consumer(&placement);
        let chunk = |chunk| Some(WorkItem { chunk, microbatch: 3 });
        assert_eq!([consumer("0F3"), consumer("0SEND_F3"), consumer("1F3")], [chunk(1), chunk(1), None]);
        assert_eq!(
            [consumer("1B3"), consumer("1I3"), consumer("1SEND_B3"), consumer("0B3")],
            [chunk(0), chunk(0), chunk(0), None]
        );
        assert_eq!([consumer("1W3"), consumer("1RECV_F3"), consumer("UPDATE")], [None; 3]);
        for (compute, receive, send) in
            [("1F3", "1RECV_F3", "1SEND_F3"), ("1B3", "1RECV_B3", "1SEND_B3"), ("1I3", "1RECV_B3", "1SEND_B3")]
        {
            let compute: Action = compute.parse().unwrap();
            assert_eq!((compute.input_receive(), compute.output_send()), (receive.parse().ok(), send.parse().ok()));
        }
    }

    #[test]
    fn send_and_receive_are_counterparts() {
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
