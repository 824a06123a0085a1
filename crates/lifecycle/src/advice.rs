//! The remedy for a failure, by its reason. The table in docs/REFERENCE.md has the same texts.

use stagecoach_api::contract::FailureKind;

use crate::{AttemptFailure, FailureReason};

impl FailureReason {
    /// Returns the remedy, as the second half of a sentence.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Error => "read the message and the end of the stage's log (logTail)",
            Self::InvalidConfig => "correct the fields of the job that the message names",
            Self::Storage => {
                "free space or repair the volume; if checkpoints exist and none is intact, restore one or create the job again"
            }
            Self::Killed => {
                "find the sender of the signal: the kernel sends it if the machine or node runs out of memory; if the \
                 stage exceeded an ephemeral-storage limit, raise that limit"
            }
            Self::PeerLost => "check the network",
            Self::Unknown | Self::Drained => "nothing: training continues by itself",
            Self::Stalled => {
                "check the network and the volume, and look for a slow machine; raise restart.stallTimeoutSeconds if \
                 a step takes longer, and restart.heartbeatTimeoutSeconds if a stage was too slow to send heartbeats"
            }
            Self::StartupTimeout => {
                "check stage 0's log, and in a cluster also DNS and the NetworkPolicies; raise \
                 restart.startupTimeoutSeconds if loading takes longer"
            }
            Self::Preempted => "set a priorityClassName with a higher priority in the template to prevent preemption",
            Self::Evicted => {
                "set resource requests, because nodes usually evict pods for lack of memory or disk. The operator's \
                 annotations (cluster-autoscaler.kubernetes.io/safe-to-evict, karpenter.sh/do-not-disrupt) prevent \
                 evictions by autoscalers, unless the template overrides them"
            }
            Self::NodeLost => {
                "look at the node; a pod that is only slow to answer needs more processor time or memory, or a longer \
                 restart.heartbeatTimeoutSeconds"
            }
            Self::Unschedulable => "add nodes, reduce the resource requests, or raise the quota",
        }
    }
}

impl AttemptFailure {
    /// Returns the remedy. A kind of failure that the stage reported takes precedence where it is more specific than
    /// the reason, as in [`AttemptFailure::label`].
    pub fn advice(&self) -> &'static str {
        self.specific_kind().map_or(self.reason.advice(), advice_of_kind)
    }
}

const fn advice_of_kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Data => "correct the corpus file that the message names",
        FailureKind::NonFinite => {
            "check the data; create a new job with another storage.path and a lower learning rate or a \
             gradientClipNorm, whose checkpoint.initFrom names this job's folder"
        }
        FailureKind::Mismatch => "run the same trainer version on all stages; if the versions are equal, report a bug",
        FailureKind::WrongResult => {
            "test the memory and the processor or GPU of the machine that the message names, and exclude the machine; \
             stagecoach audit --all on another machine finds the first step with a wrong result"
        }
        FailureKind::OutOfMemory => {
            "raise the limit, or use more stages, more microbatches or pipeline.recompute: Selective or Full, or \
             training.precision: BFloat16 in a new job"
        }
        FailureKind::InvalidConfig => FailureReason::InvalidConfig.advice(),
        FailureKind::Storage => FailureReason::Storage.advice(),
        FailureKind::PeerLost => FailureReason::PeerLost.advice(),
        FailureKind::Stalled => FailureReason::Stalled.advice(),
        FailureKind::StartupTimeout => FailureReason::StartupTimeout.advice(),
        FailureKind::Drained => FailureReason::Drained.advice(),
        FailureKind::Done | FailureKind::Error => FailureReason::Error.advice(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stagecoach_api::job::FailureLabel;

    use super::*;
    use crate::UnixMillis;

    /// Returns the remedies in the table "Failure reasons" of docs/REFERENCE.md, by label.
    fn documented() -> BTreeMap<String, String> {
        let text = include_str!("../../../docs/REFERENCE.md");
        let (_, section) = text.split_once("\n## Failure reasons\n").unwrap();
        let lines = section.lines().skip_while(|line| !line.starts_with('|')).skip(2);
        let row = |line: &str| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].trim_matches('`').to_owned(), without_links(&cells[3].replace('`', "")))
        };
        lines.take_while(|line| line.starts_with('|')).map(row).collect()
    }

    /// Returns the text without ` ([title](target))`.
    fn without_links(text: &str) -> String {
        match text.split_once(" ([") {
            Some((before, rest)) => before.to_owned() + &without_links(rest.split_once("))").unwrap().1),
            None => text.to_owned(),
        }
    }

    fn failure(reason: FailureReason, kind: Option<FailureKind>) -> AttemptFailure {
        AttemptFailure {
            attempt: 1,
            rank: Some(0),
            mesh: None,
            incarnation: 0,
            reason,
            exit_code: None,
            kind,
            step: None,
            action: None,
            message: String::new(),
            failed_at: UnixMillis(0),
            uncounted: false,
        }
    }

    #[test]
    fn the_documentation_says_the_same() {
        let failure_of = |label: &FailureLabel| match serde_json::from_value(label.as_str().into()) {
            Ok(reason) => failure(reason, None),
            Err(_) => failure(FailureReason::Error, Some(serde_json::from_value(label.as_str().into()).unwrap())),
        };
        let all = FailureLabel::ALL.iter().map(failure_of);
        let advice: BTreeMap<String, String> =
            all.map(|failure| (failure.label(), failure.advice().to_owned())).collect();
        assert_eq!(documented(), advice, "left: docs/REFERENCE.md, right: the code");
    }

    #[test]
    fn a_kernel_that_ends_a_stage_for_its_memory_is_known_by_the_kind() {
        let out_of_memory = failure(FailureReason::Killed, Some(FailureKind::OutOfMemory));
        assert_eq!(out_of_memory.advice(), advice_of_kind(FailureKind::OutOfMemory));
        assert_eq!(failure(FailureReason::Killed, Some(FailureKind::Error)).advice(), FailureReason::Killed.advice());
    }
}
