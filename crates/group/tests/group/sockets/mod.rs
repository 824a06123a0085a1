//! Whole groups over real sockets on 127.0.0.1. Members are threads, and a closed connection stands for a member's
//! death.

mod collectives;
mod failures;
mod foreign_peers;
mod formation;
mod leaving;
mod refusals;
mod replicas;
mod spares;
mod support;
