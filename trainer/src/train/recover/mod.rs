//! The recovery of a stage from the loss of its group.

pub(in crate::train) mod carry_over;
pub(in crate::train) mod on_failure;
pub(in crate::train) mod out_of_memory;

use std::time::Duration;

use stagecoach_group::{GroupError, Member};
use stagecoach_transport::LinkError;

use crate::train::leave::LeaveReason;

/// The time to wait, after a link breaks, until the group reports the root cause.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_secs(4);

/// Returns the reason for leaving after a broken link: the root cause, which the group reports after a moment, or else
/// the broken link.
pub(in crate::train) fn link_failure(member: &Member, error: LinkError) -> LeaveReason {
    match error {
        LinkError::Broken(_) | LinkError::Unreachable(_) => match member.wait_for_failure(ROOT_CAUSE_TIMEOUT) {
            Some(failure) => GroupError::GroupFailed(Box::new(failure)).into(),
            None => error.into(),
        },
        LinkError::Mismatch(_) | LinkError::Unavailable(_) | LinkError::Device(_) | LinkError::Local(_) => error.into(),
    }
}
