//! Tests of the node itself, before the tests of `make e2e` use it. Both need root, and one needs a machine without a
//! node.

mod containers;
mod ends;
