//! The remedy for a failure, by its reason. The table in docs/REFERENCE.md has the same texts.

use stagecoach_api::contract::FailureKind;

use crate::{AttemptFailure, FailureReason};

impl FailureReason {
    /// Returns the remedy, as the second half of a sentence.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Error => "read the message and the end of the stage's log (logTail)",
            Self::InvalidConfig => "change what the message names in the job",
            Self::Storage => {
                "free space or repair the volume; if checkpoints exist and none is intact, restore one or create the job again"
            }
            Self::Killed => {
                "find out who sent the signal: the kernel, if the machine or node ran out of memory; if it was for stored bytes, \
                 raise that limit"
            }
            Self::PeerLost => "look at the network",
            Self::Unknown | Self::Drained => "nothing: training continues by itself",
            Self::Stalled => {
                "look at the network, the volume and for a slow machine; raise restart.stallTimeoutSeconds if steps are that \
                 long, and restart.heartbeatTimeoutSeconds if a stage of one machine was silent because it was slow"
            }
            Self::StartupTimeout => {
                "look at stage 0's log, and in a cluster at DNS and NetworkPolicy; raise restart.startupTimeoutSeconds if \
                 loading is that slow"
            }
            Self::Preempted => "give the template a priorityClassName if the job should not give way",
            Self::Evicted => {
                "set requests, since the node often lacks memory or disk. Autoscalers leave the pods where they are, unless the \
                 template has their annotations (cluster-autoscaler.kubernetes.io/safe-to-evict, karpenter.sh/do-not-disrupt) \
                 with other values"
            }
            Self::NodeLost => {
                "look at the node; a pod that is only slow to answer needs more processor time or memory, or a longer \
                 restart.heartbeatTimeoutSeconds"
            }
            Self::Unschedulable => "add nodes, ask for less, or raise the quota",
        }
    }
}

impl AttemptFailure {
    /// Returns the remedy. A kind of failure that the stage reported takes precedence where it is more specific than
    /// the reason, as in [`AttemptFailure::label`].
    pub fn advice(&self) -> &'static str {
        match (self.reason, self.kind) {
            (FailureReason::Error, Some(kind)) | (FailureReason::Killed, Some(kind @ FailureKind::OutOfMemory)) => {
                advice_of_kind(kind)
            }
            (reason, _) => reason.advice(),
        }
    }
}

const fn advice_of_kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Data => "correct the corpus file that the message names",
        FailureKind::NonFinite => {
            "make a new job with another storage.path and a lower learning rate or a gradientClipNorm, whose checkpoint.initFrom \
             takes the weights along; look at the data"
        }
        FailureKind::Mismatch => "run one version of the trainer on all stages; if they do, report it",
        FailureKind::WrongResult => {
            "test the memory and the processor or GPU of the machine that the message names, and keep it out; \
             stagecoach audit --all on another machine finds what was trained since it began to compute wrong"
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

    /// Returns the rows of the table: the label and the remedy.
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
