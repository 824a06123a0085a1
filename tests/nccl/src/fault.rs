//! Faults and random delays that this stand-in for NCCL injects. Environment variables select the faults.

use std::fs::File;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The fault of an NCCL operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NcclFault {
    None,
    /// The operation never completes, and NCCL reports an error.
    Error,
    /// The operation never completes, and NCCL reports no error.
    Hang,
}

fn number(variable: &str, otherwise: i32) -> i32 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// Returns the version that NCCL reports.
pub(crate) fn nccl_version() -> i32 {
    number("NCCL_STAND_IN_VERSION", 22_809)
}

/// Returns the number of devices that the driver reports.
pub(crate) fn devices() -> i32 {
    number("NCCL_STAND_IN_DEVICES", 1)
}

/// Whether another process occupies the device.
pub(crate) fn is_busy() -> bool {
    number("NCCL_STAND_IN_BUSY", 0) > 0
}

/// Whether all streams of a process share one queue. The queue runs tasks in the order of submission.
pub(crate) fn has_one_queue() -> bool {
    static ONE: LazyLock<bool> = LazyLock::new(|| number("NCCL_STAND_IN_ONE_QUEUE", 0) > 0);
    *ONE
}

/// Counts an operation, and returns its fault.
pub(crate) fn of_operation() -> NcclFault {
    static OPERATIONS: AtomicU64 = AtomicU64::new(0);
    let nth = OPERATIONS.fetch_add(1, Ordering::SeqCst) + 1;
    match () {
        () if strikes("error", nth) => NcclFault::Error,
        () if strikes("hang", nth) => NcclFault::Hang,
        () => NcclFault::None,
    }
}

/// Counts a communicator, and returns whether it never connects.
pub(crate) fn never_connects() -> bool {
    static COMMUNICATORS: AtomicU64 = AtomicU64::new(0);
    strikes("init", COMMUNICATORS.fetch_add(1, Ordering::SeqCst) + 1)
}

/// Counts a request for pinned memory, and returns whether the request fails.
pub(crate) fn pins_nothing() -> bool {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    strikes("pin", REQUESTS.fetch_add(1, Ordering::SeqCst) + 1)
}

fn strikes(kind: &str, nth: u64) -> bool {
    let Ok(fault) = std::env::var("NCCL_STAND_IN_FAULT") else { return false };
    let parts: Vec<&str> = fault.splitn(4, ':').collect();
    let [rank, what, count, file] = parts[..] else { panic!("NCCL_STAND_IN_FAULT is {fault:?}") };
    std::env::var("RANK").is_ok_and(|own| own == rank)
        && what == kind
        && count.parse::<u64>().unwrap() == nth
        && File::create_new(file).is_ok()
}

/// Sleeps for less than a millisecond. In a third of the calls, does not sleep.
pub(crate) fn delay() {
    let random = getrandom::u32().unwrap();
    if !random.is_multiple_of(3) {
        std::thread::sleep(Duration::from_micros(u64::from(random % 997)));
    }
}
