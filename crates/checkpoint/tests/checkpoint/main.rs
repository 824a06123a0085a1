//! Checkpoints on a volume: saved, loaded, damaged, fenced and exported, through the public API.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod crashes;
mod damage;
mod export;
mod fences;
mod links;
mod model_files;
mod saving;
