//! The product as its users meet it, on the node that `make e2e` starts: a helm release, kubectl, jobs on a shared
//! volume. Whoever holds the [`Product`] has the node to itself: most tests disturb all of it.

mod job;
mod laptop;
mod product;

pub use job::{E2eJob, spec};
pub use laptop::{Hashes, on_this_machine, run_on_this_machine};
pub use product::{NAMESPACE, Product, SYSTEM, texts};
