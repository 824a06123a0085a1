//! The product as its users see it, on the node that `make e2e` starts: a helm release, kubectl, and jobs on a shared
//! volume. A test with the [`Product`] has exclusive use of the node, because most tests disturb the whole node.

mod job;
mod laptop;
mod product;

pub use job::{E2eJob, endless, spec};
pub use laptop::{Hashes, built, on_this_machine, run_on_this_machine};
pub use product::{Cordoned, NAMESPACE, Product, SYSTEM, texts};
