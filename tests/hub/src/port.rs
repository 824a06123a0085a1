//! The two ports of the hub.

/// One of the two ports of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The port with the API, small files, and redirects to the CDN.
    Hub,
    /// The port with large files.
    Cdn,
}
