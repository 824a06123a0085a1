//! Whole groups over real sockets on 127.0.0.1: members are threads, and die by closed connections.

mod collectives;
mod failures;
mod foreign_peers;
mod formation;
mod hangs;
mod leaving;
mod refusals;
mod replicas;
mod spares;
mod support;
