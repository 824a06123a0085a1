//! The likelihood that an exit is the root cause of a failed attempt.

use stagecoach_api::contract::{ExitCode, FailureKind};

use crate::instance::Exit;

/// The likelihood that an exit is the root cause, in descending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CauseOrder {
    /// The stage failed by itself.
    RootCause,
    /// The stage exited after SIGTERM.
    Drained,
    /// The stage exited because it lost a peer.
    Secondary,
}

/// Returns the likelihood that an exit is the root cause. The exit must not have the code of `Done`. While the cluster
/// has not started a stage (`has_unstarted_stage`), the start-up timeout of another stage is secondary, because the
/// stages can't form a group.
pub(crate) fn cause_order(exit: &Exit, has_unstarted_stage: bool) -> CauseOrder {
    let reported_kind = exit.termination.as_ref().map(|report| report.kind);
    match exit.contract_code() {
        _ if exit.external_cause.is_some() => CauseOrder::RootCause,
        _ if has_unstarted_stage && reported_kind == Some(FailureKind::StartupTimeout) => CauseOrder::Secondary,
        Some(ExitCode::PeerLost) => CauseOrder::Secondary,
        Some(ExitCode::Drained) => CauseOrder::Drained,
        _ if reported_kind == Some(FailureKind::PeerLost) => CauseOrder::Secondary,
        _ => CauseOrder::RootCause,
    }
}

/// Whether a stage exited because of its own failure, and not because it was done, was asked to stop, or lost a peer.
pub(crate) fn failed_by_itself(exit: &Exit) -> bool {
    exit.contract_code() != Some(ExitCode::Done) && cause_order(exit, false) == CauseOrder::RootCause
}

/// Whether a stage exited because it had finished or was asked to stop.
pub(crate) fn exited_gracefully(exit: &Exit) -> bool {
    exit.contract_code() == Some(ExitCode::Done) || cause_order(exit, false) == CauseOrder::Drained
}
