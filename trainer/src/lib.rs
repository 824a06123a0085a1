//! The trainer: trains a language model through a pipeline of stages. The single binary `stagecoach` is the launcher on
//! a laptop, the entry point of a pod, and the tool that plans, tokenises and generates. See `docs/ARCHITECTURE.md`.

mod blame;
pub mod cli;
mod init;
mod page;
mod plan;
mod profile;
mod replay;
mod stage_error;
mod train;
