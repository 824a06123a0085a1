//! The operator's rooms, in the order in which data passes through them: what is seen of a job becomes `lifecycle`'s
//! `Observed`, its decision becomes objects. Here are the pure ones.
#![forbid(unsafe_code)]

pub mod build;
mod member;

pub use member::{Trouble, member, trouble};
