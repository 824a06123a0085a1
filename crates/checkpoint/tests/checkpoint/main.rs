//! Tests of checkpoints on a volume through the public API: saving, loading, damage, fences and export.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod crashes;
mod damage;
mod export;
mod fences;
mod links;
mod model_files;
mod probe;
mod saving;
mod suspension;
