//! Tests of the whole product: real pods with the real images and a real corpus, installed by the real chart on a real
//! node (`make e2e`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod custom;
mod docs;
mod drain;
mod faults;
mod full;
mod gang;
mod life;
mod node;
mod operator;
mod plugin;
mod queues;
mod replicas;
mod scale;
mod spares;
