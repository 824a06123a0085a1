//! The node before what `make e2e` does with it: both need root, and one of them a machine without a node.

mod containers;
mod ends;
