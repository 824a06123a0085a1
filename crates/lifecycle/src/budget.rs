//! The restart budget. A newly committed checkpoint resets the budget, because training then makes progress between
//! failures.

use serde::{Deserialize, Serialize};

/// The numbers of restarts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartBudget {
    /// The number of all restarts.
    pub total: u32,
    /// The number of restarts that counted against the budget.
    pub counted: u32,
    /// The number of restarts in which new instances or promoted spares replaced only the lost stages.
    #[serde(default)]
    pub replaced: u32,
    /// The number of restarts that counted since the last committed checkpoint.
    #[serde(rename = "spent")]
    pub counted_since_checkpoint: u32,
}

impl RestartBudget {
    /// Returns the number of counted restarts that are still allowed.
    pub const fn remaining(self, max_restarts: u32) -> u32 {
        max_restarts.saturating_sub(self.counted_since_checkpoint)
    }

    pub(crate) const fn reset(&mut self) {
        self.counted_since_checkpoint = 0;
    }

    /// Returns the last counted restart to the budget, because the failure turned out not to count.
    pub(crate) const fn give_back(&mut self) {
        self.counted = self.counted.saturating_sub(1);
        self.counted_since_checkpoint = self.counted_since_checkpoint.saturating_sub(1);
    }

    /// Records one restart. Returns false if the restart counts against the budget and the budget is exhausted.
    pub(crate) const fn try_consume(&mut self, counted: bool, max_restarts: u32) -> bool {
        if counted && !self.try_count(max_restarts) {
            return false;
        }
        self.total = self.total.saturating_add(1);
        true
    }

    /// Counts a restart against the budget. Returns false if the budget is exhausted.
    pub(crate) const fn try_count(&mut self, max_restarts: u32) -> bool {
        if self.remaining(max_restarts) == 0 {
            return false;
        }
        self.counted = self.counted.saturating_add(1);
        self.counted_since_checkpoint = self.counted_since_checkpoint.saturating_add(1);
        true
    }
}
