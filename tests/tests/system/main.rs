//! Tests across crates that run on every change. Most of them run the real trainer's processes, with all kinds of
//! layouts and one fault of each kind, and compare the results with those of an undisturbed run.

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
