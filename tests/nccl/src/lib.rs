//! A stand-in for `libnccl.so.2` and `libcuda.so.1`, for tests on machines without a GPU. The stand-in implements the
//! functions with which the trainer sends tensors between stages. Its device memory is memory of the host. The stand-in
//! is at least as strict and as asynchronous as the real libraries:
//!
//! - Streams are threads. The default stream is the calling thread, since on a CPU libtorch computes before it returns.
//! - A receive fills its buffer with NaN until the receive is complete, and a send reads its buffer late. The results
//!   therefore change if the trainer uses a buffer before completion, or frees it before the send has read it. A send
//!   completes when its peer has received the message.
//! - Copies between the host and the device accept only pinned memory, start late, and fill their target with NaN until
//!   they have completed.
//! - A thread without a CUDA context can call hardly any function of the driver.
//! - Calls on a communicator return before they have completed, and another call before the completion is an error.
//! - With `NCCL_STAND_IN_ONE_QUEUE=1`, the tasks of all streams of a process run in the order of submission. A GPU with
//!   one hardware queue, or a driver that waits for the device, behaves this way. A message that waits for its peer
//!   delays all later work.
//! - Two processes with the same `NCCL_HOSTID` are on one host, and can't use the same device.
//! - A failed operation never completes by itself: the process must abort the communicator.
//!
//! `NCCL_STAND_IN_FAULT` is `RANK:KIND:N:FILE`. The process with this `RANK` has a fault in its Nth operation, if the
//! process can create FILE. A later process finds FILE, so the fault occurs only once. KIND is `error` (NCCL reports
//! the fault), `hang` (nothing reports it), `init` (the Nth communicator never connects) or `pin` (the Nth request for
//! pinned memory fails). `NCCL_STAND_IN_VERSION` is the version that NCCL reports. `NCCL_STAND_IN_DEVICES` is the
//! number of devices that the driver reports. With `NCCL_STAND_IN_BUSY`, another process occupies the devices.

mod copies;
mod driver;
mod fault;
mod nccl;
