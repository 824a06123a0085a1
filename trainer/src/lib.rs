//! The trainer: trains a language model through a pipeline of stages. The single binary `stagecoach` is the launcher on
//! a laptop, the entry point of a pod, and the tool that plans, tokenises and generates. See `docs/ARCHITECTURE.md`.

pub mod cli;
mod train;
