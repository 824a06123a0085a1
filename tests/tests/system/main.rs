//! Tests across crates, for every change: the real trainer as processes, in every layout and under one fault of each
//! kind, compared with an undisturbed run.

mod bad_input;
mod checkpoint_commands;
mod commands;
mod faults;
mod host_waits;
mod init;
mod own_files;
mod parity;
mod portable;
mod sbom;
mod survivors;
mod two_jobs;
mod why;
