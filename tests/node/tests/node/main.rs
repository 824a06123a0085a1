//! Tests of the node itself, which `make e2e` runs before and after its other tests. Both need root, and `ends` needs a
//! machine without a node.

mod containers;
mod ends;
