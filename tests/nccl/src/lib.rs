//! A stand-in for `libnccl.so.2` and `libcuda.so.1`, for tests on machines without a GPU. The stand-in implements the
//! functions that the trainer's links call, over the memory of the host. It is as strict and as asynchronous as the
//! real libraries may be:
//!
//! - Streams are threads. The default stream is the calling thread, since on a CPU libtorch computes before it returns.
//! - A receive fills its buffer with NaN until the receive is complete, and a send reads its buffer late. Use of a
//!   buffer before completion, or its release before it is sent, therefore changes bits. A send completes when its peer
//!   has received the message.
//! - Copies from and to the host accept only pinned memory, begin late, and fill their target with NaN until they are
//!   done.
//! - A thread without a context may call hardly any function.
//! - Calls return before they are done, and another call before that is an error.
//! - With `NCCL_STAND_IN_ONE_QUEUE=1` all streams of a process run in the order of submission, as where a GPU has one
//!   hardware queue or the driver waits for the device. A message that waits for its peer then holds up all later work.
//! - Two processes of one host (by `NCCL_HOSTID`) can't use one device.
//! - A failed operation never completes by itself: the communicator must be aborted.
//!
//! `NCCL_STAND_IN_FAULT` is `RANK:KIND:N:FILE`. The process whose `RANK` matches and that creates FILE (so that the
//! fault strikes once) has a fault in its Nth operation. KIND is `error` (NCCL reports it), `hang` (nothing reports
//! it), `init` (the Nth communicator never connects) or `pin` (the Nth request for pinned memory fails).
//! `NCCL_STAND_IN_VERSION` is the version that NCCL reports. `NCCL_STAND_IN_DEVICES` is the number of devices that the
//! driver reports, and with `NCCL_STAND_IN_BUSY` another process occupies them.

mod copies;
mod driver;
mod fault;
mod nccl;
