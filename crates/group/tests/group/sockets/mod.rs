//! Tests whole groups over real sockets on 127.0.0.1. Each member runs on a thread. A closed connection represents the
//! death of a member's process.

mod collectives;
mod failures;
mod foreign_peers;
mod formation;
mod leaving;
mod refusals;
mod replicas;
mod spares;
mod support;
