//! Runs the independent cases (rows) of a test, several at the same time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The number of rows that are running in all tests of this process, and the signal that a row has ended.
static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Returns the maximum number of rows that run at the same time: two for each core, since a job waits about as long as
/// it computes.
fn at_once() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// The permit to run a row. Dropping this value lets another row start.
struct RowPermit;

impl RowPermit {
    fn wait() -> RowPermit {
        let (running, ended) = &RUNNING;
        let lock = running.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |running: &mut usize| *running >= at_once();
        *ended.wait_while(lock, is_full).unwrap_or_else(PoisonError::into_inner) += 1;
        RowPermit
    }
}

impl Drop for RowPermit {
    fn drop(&mut self) {
        let (running, ended) = &RUNNING;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

/// Runs `check` on every item with its index, several at the same time, and prints the progress every 50 items. All
/// calls in a process together run at most two rows for each core. A row must not call `each`, since that call would
/// wait until the row itself has ended.
///
/// # Panics
/// After the last item, if a check failed.
pub fn each<T: Sync>(what: &str, items: &[T], check: impl Fn(usize, &T) + Sync) {
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..at_once().min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    let Some(item) = items.get(at) else { return };
                    let _turn = RowPermit::wait();
                    if at % 50 == 0 {
                        println!("{what}: {at} of {}", items.len());
                    }
                    let checked = catch_unwind(AssertUnwindSafe(|| check(at, item)));
                    failed.fetch_add(usize::from(checked.is_err()), Ordering::SeqCst);
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed == 0, "{what}: {failed} of {} failed, see above", items.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_and_a_failed_one_fails_the_test() {
        let sum = AtomicUsize::new(0);
        let rows: Vec<usize> = (1..=100).collect();
        each("rows", &rows, |at, row| {
            assert_eq!(at + 1, *row);
            sum.fetch_add(*row, Ordering::SeqCst);
        });
        assert_eq!(sum.into_inner(), 5050);
        let failed = catch_unwind(|| each("rows", &rows, |_, row| assert_ne!(*row, 7)));
        assert_eq!(*failed.unwrap_err().downcast::<String>().unwrap(), "rows: 1 of 100 failed, see above");
    }
}
