//! How many restarts are left. A new checkpoint is the proof that restarting helps: it refills the budget.

use serde::{Deserialize, Serialize};

/// Restarts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// All of them.
    pub total: u32,
    /// Those that counted.
    pub counted: u32,
    /// Those that counted since a checkpoint was last committed.
    pub spent: u32,
}

impl Budget {
    /// Counted restarts still allowed.
    pub const fn left(self, max_restarts: u32) -> u32 {
        max_restarts.saturating_sub(self.spent)
    }

    pub(crate) const fn refill(&mut self) {
        self.spent = 0;
    }

    /// Takes one restart; false if it counts and none is left.
    pub(crate) const fn take(&mut self, counted: bool, max_restarts: u32) -> bool {
        if counted {
            if self.left(max_restarts) == 0 {
                return false;
            }
            self.counted = self.counted.saturating_add(1);
            self.spent = self.spent.saturating_add(1);
        }
        self.total = self.total.saturating_add(1);
        true
    }
}
