//! The two ports.

/// One of the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The API, small files, and redirects to the CDN.
    Hub,
    /// Large files.
    Cdn,
}
