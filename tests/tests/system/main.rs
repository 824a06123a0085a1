//! What crosses crates: the real trainer as processes, disturbed in every way, and compared with its undisturbed self.

mod attempts;
mod bad_input;
mod checkpoint_commands;
mod commands;
mod crashes;
mod damage;
mod faults;
mod full_volume;
mod initial;
mod own_files;
mod parity;
mod pressure;
mod resume;
mod soak;
mod storage;
mod strace;
