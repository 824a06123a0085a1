//! A stand-in for `libnccl.so.2` and `libcuda.so.1`, for tests on machines without a GPU. It has the functions that the
//! trainer's links call, over the memory of the host, and is as strict and as late as the real ones may be:
//!
//! - Streams are threads; the default stream is the caller, since on a CPU libtorch computes before it returns.
//! - A receive fills its buffer with NaN until it is complete, and a send reads its buffer late: use before completion and a free
//!   before it is sent change bits. A send completes when its peer has received it.
//! - Copies from and to the host take pinned memory alone, are begun late, and leave NaN in what they fill until they are done.
//! - A thread without a context may do next to nothing.
//! - Calls return before they are done, and calling again before they are is an error.
//! - With `NCCL_STAND_IN_ONE_QUEUE=1` all streams of a process run in the order of submission, as where a GPU has one
//!   hardware queue or the driver waits for the device: a message that waits for its peer then holds up all later work.
//! - Two processes of one host, by `NCCL_HOSTID`, are refused on one device.
//! - What has failed never completes by itself: it has to be aborted.
//!
//! `NCCL_STAND_IN_FAULT` is `RANK:KIND:N:FILE`: the process whose `RANK` it is and that creates FILE (so that it
//! strikes once) has a fault in its Nth operation. KIND is `error` (NCCL reports it), `hang` (nobody does), `init` (the
//! Nth communicator never connects) or `pin` (no memory is pinned at the Nth request). `NCCL_STAND_IN_VERSION` is the
//! version that NCCL says it is, `NCCL_STAND_IN_DEVICES` how many devices the driver says there are, and with
//! `NCCL_STAND_IN_BUSY` another process has them for itself.

mod copies;
mod driver;
mod fault;
mod nccl;
