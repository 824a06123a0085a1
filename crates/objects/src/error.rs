//! The errors of reads from object stores. Each message names the problem and where it occurred, and suggests a remedy.

use std::io;

use crate::provider::Provider;
use crate::uri::{ObjectUri, UriError};

/// The reason why a client can't list or read an object store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ObjectError {
    /// A URI doesn't name objects.
    #[error(transparent)]
    Uri(#[from] UriError),
    /// A pattern is invalid.
    #[error("\"{pattern}\" is not a valid pattern: {reason}")]
    Pattern {
        /// The pattern as written.
        pattern: String,
        /// The message of the pattern's parser.
        reason: String,
    },
    /// An environment variable that should contain the URL of a server is invalid.
    #[error("{variable} is not the URL of a server, such as https://minio.example.org:9000: {reason}")]
    Endpoint {
        /// The name of the variable.
        variable: String,
        /// The problem.
        reason: String,
    },
    /// An environment variable of a store is invalid, or a required variable is missing.
    #[error(
        "the variables {}* don't describe a store of {}:// files: {reason}",
        provider.prefix(),
        provider.scheme()
    )]
    StoreVariables {
        /// The kind of store.
        provider: Provider,
        /// The problem.
        reason: String,
    },
    /// The runtime of the client can't be started.
    #[error("can't start the client of object stores: {reason}")]
    Runtime {
        /// The system's message.
        reason: String,
    },
    /// The store has no such bucket.
    #[error(
        "{host} has no {} {}: check the spelling, and that {} names the right store",
        uri.provider.bucket(),
        uri.bucket,
        uri.provider.endpoint_variables()[0]
    )]
    NoBucket {
        /// The server.
        host: String,
        /// The URI of the bucket, or of an object in the bucket.
        uri: ObjectUri,
    },
    /// The bucket has no such object.
    #[error("there is no {uri}: check the spelling, and that nobody has removed it")]
    NoObject {
        /// The URI.
        uri: ObjectUri,
    },
    /// A pattern matches no object.
    #[error("no object matches {uri}: {nearest}")]
    NoMatch {
        /// The URI with the pattern.
        uri: ObjectUri,
        /// A sentence with some existing objects or folders.
        nearest: String,
    },
    /// The client finds no credentials.
    #[error(
        "there are no credentials to read {uri}: {}, or set {}=true if everybody may read it ({tried})",
        uri.provider.credential_advice(),
        uri.provider.skip_signature()
    )]
    NoCredentials {
        /// The URI.
        uri: ObjectUri,
        /// The last attempt to get credentials, and its result.
        tried: String,
    },
    /// A service that issues credentials refuses the request.
    #[error("{host} refused to issue credentials and answered {answer}: check {}", account_name(variables))]
    CredentialsRefused {
        /// The service.
        host: String,
        /// The answer of the service.
        answer: String,
        /// The names of the variables with credentials.
        variables: String,
    },
    /// The store doesn't accept the credentials.
    #[error(
        "{host} doesn't accept the credentials, it answered {answer}: check {}, or set {}=true if everybody may read",
        account_name(variables),
        provider.skip_signature()
    )]
    WrongCredentials {
        /// The server.
        host: String,
        /// The answer of the server.
        answer: String,
        /// The kind of store.
        provider: Provider,
        /// The names of the variables with credentials.
        variables: String,
    },
    /// The store accepts the credentials, but refuses access.
    #[error(
        "{host} refuses access to {uri}, it answered {answer}: give {} {}, or use the credentials of an account that \
         has them",
        account_name(variables),
        uri.provider.permissions()
    )]
    AccessDenied {
        /// The server.
        host: String,
        /// The answer of the server.
        answer: String,
        /// The URI.
        uri: Box<ObjectUri>,
        /// The names of the variables with credentials.
        variables: String,
    },
    /// The server does not serve the region of the bucket.
    #[error("{host} does not serve the region of the bucket {}: set AWS_REGION{}", uri.bucket, match region {
        Some(region) => format!("={region}"),
        None => " to the region of the bucket".to_owned(),
    })]
    OtherRegion {
        /// The server that answered.
        host: String,
        /// The URI.
        uri: ObjectUri,
        /// The region of the bucket, if the server states it.
        region: Option<String>,
    },
    /// The clock of this machine is wrong.
    #[error("{host} refuses requests, since the clock of this machine differs from its own: set the clock (NTP)")]
    ClockSkew {
        /// The server.
        host: String,
    },
    /// The contents of an object have changed, or the object was removed, since the listing.
    #[error(
        "{uri} has changed or is gone since it was listed: leave the objects of a corpus as they are, or start a new \
         job with the objects that exist now"
    )]
    Changed {
        /// The URI.
        uri: ObjectUri,
    },
    /// An answer does not follow the protocol of an object store.
    #[error("{uri} can't be read: {reason}: check the endpoint, proxies and the variables {}*", uri.provider.prefix())]
    Unreadable {
        /// The URI.
        uri: ObjectUri,
        /// The problem.
        reason: String,
    },
    /// This machine doesn't trust the server's certificate.
    #[error(
        "the certificate of {host} is not trusted ({reason}): add its CA to the image's certificates, or set \
         SSL_CERT_FILE to a file with it"
    )]
    Untrusted {
        /// The server.
        host: String,
        /// The problem of the certificate.
        reason: String,
    },
    /// The client can't connect to a server.
    #[error(
        "{}: check the network (in a cluster, networkPolicy.egressCIDRs of the job must allow it, and a proxy may be \
         needed, HTTPS_PROXY)",
        unreachable(host, reason)
    )]
    Unreachable {
        /// The server.
        host: String,
        /// The system's message.
        reason: String,
    },
    /// A connection broke repeatedly.
    #[error("{}: try again, and check the network if the error persists", interrupted(host, reason))]
    Interrupted {
        /// The server.
        host: String,
        /// The cause.
        reason: String,
    },
    /// A server can't answer at present.
    #[error("{}: try again later", unavailable(host, answer))]
    Unavailable {
        /// The server.
        host: String,
        /// The answer of the server.
        answer: String,
    },
}

impl ObjectError {
    /// Whether the same request may succeed later without a change by the user.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            ObjectError::Unreachable { .. } | ObjectError::Interrupted { .. } | ObjectError::Unavailable { .. }
        )
    }

    /// Returns the `ObjectError` inside an I/O error of a reader.
    pub fn within(error: &io::Error) -> Option<&ObjectError> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns the message of the cause, without the remedy.
    pub(crate) fn cause(&self) -> String {
        match self {
            ObjectError::Unreachable { host, reason } => unreachable(host, reason),
            ObjectError::Interrupted { host, reason } => interrupted(host, reason),
            ObjectError::Unavailable { host, answer } => unavailable(host, answer),
            ObjectError::NoCredentials { tried, .. } => format!("no credentials yet ({tried})"),
            error => error.to_string(),
        }
    }
}

impl From<ObjectError> for io::Error {
    fn from(error: ObjectError) -> io::Error {
        io::Error::other(error)
    }
}

fn unreachable(host: &str, reason: &str) -> String {
    format!("can't connect to {host}: {reason}")
}

fn interrupted(host: &str, reason: &str) -> String {
    format!("the connection to {host} broke: {reason}")
}

fn unavailable(host: &str, answer: &str) -> String {
    format!("{host} answered {answer}")
}

/// Names the account to which the credentials in `variables` belong. If no variable has credentials, this is the
/// account of the machine or pod.
fn account_name(variables: &str) -> String {
    match variables {
        "" => "the account of this machine or pod (no variable names another)".to_owned(),
        names => format!("the account of {names}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_reader_can_be_distinguished() {
        let error = io::Error::from(ObjectError::Unavailable { host: "s3".into(), answer: "503".into() });
        assert!(ObjectError::within(&error).unwrap().is_temporary());
        assert!(ObjectError::within(&io::Error::other("something else")).is_none());
    }
}
