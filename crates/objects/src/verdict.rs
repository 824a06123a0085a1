//! Converts a failed request to the error that users see.

use crate::error::ObjectError;
use crate::failure::{ErrorResponse, Purpose, StoreFailure, causes, reason, shortened};
use crate::settings::StoreVariables;
use crate::uri::ObjectUri;

/// Returns the error that users see when a request for `uri` fails with `error`. The key of `uri` is empty for a
/// listing.
pub(crate) fn verdict(error: &object_store::Error, uri: &ObjectUri, settings: &StoreVariables) -> ObjectError {
    let failure = causes(error).into_iter().find_map(|cause| cause.downcast_ref::<StoreFailure>());
    match failure {
        Some(failure) => from_failure(failure, uri, settings),
        None => ObjectError::Unreadable { uri: uri.clone(), reason: settings.redacted(&reason(error)) },
    }
}

/// Returns the server's response that refused the request, if `error` has one among its causes.
pub(crate) fn response(error: &object_store::Error) -> Option<&ErrorResponse> {
    causes(error).into_iter().find_map(|cause| match cause.downcast_ref()? {
        StoreFailure::Refused(_, response) => Some(response),
        _ => None,
    })
}

fn from_failure(failure: &StoreFailure, uri: &ObjectUri, settings: &StoreVariables) -> ObjectError {
    let provider = uri.provider;
    let request = match failure {
        StoreFailure::Refused(request, _)
        | StoreFailure::Unreachable(request, _)
        | StoreFailure::Untrusted(request, _)
        | StoreFailure::Interrupted(request, _) => request,
    };
    let host = request.host.clone();
    if request.purpose == Purpose::AmbientCredentials {
        let tried = shortened(&settings.redacted(&failure.to_string()));
        return ObjectError::NoCredentials { uri: uri.clone(), tried };
    }
    match failure {
        StoreFailure::Refused(_, response) => {
            let answer = shortened(&settings.redacted(&response.to_string()));
            let is_temporary = matches!(response.status, 408 | 429 | 500 | 502..)
                || matches!(response.code.as_str(), "SlowDown" | "RequestTimeout" | "ServerBusy" | "InternalError");
            match request.purpose {
                _ if is_temporary => ObjectError::Unavailable { host, answer },
                Purpose::Objects => from_refusal(response, host, answer, uri, settings),
                _ => ObjectError::CredentialsRefused { host, answer, variables: settings.credentials(provider) },
            }
        }
        StoreFailure::Unreachable(_, reason) => ObjectError::Unreachable { host, reason: reason.clone() },
        StoreFailure::Untrusted(_, reason) => ObjectError::Untrusted { host, reason: reason.clone() },
        StoreFailure::Interrupted(_, reason) => ObjectError::Interrupted { host, reason: reason.clone() },
    }
}

fn from_refusal(
    response: &ErrorResponse,
    host: String,
    answer: String,
    uri: &ObjectUri,
    settings: &StoreVariables,
) -> ObjectError {
    let uri = uri.clone();
    let variables = settings.credentials(uri.provider);
    match (response.status, response.code.as_str()) {
        (_, "NoSuchBucket" | "ContainerNotFound") => ObjectError::NoBucket { host, uri },
        (_, "NoSuchKey" | "BlobNotFound") => ObjectError::NoObject { uri },
        (_, "RequestTimeTooSkewed" | "RequestExpired") => ObjectError::ClockSkew { host },
        // Azure has no separate code for a wrong clock
        (403, "AuthenticationFailed") if response.message.contains("Date") => ObjectError::ClockSkew { host },
        (301 | 307, _)
        | (_, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException") => {
            ObjectError::OtherRegion { uri, host, region: response.region.clone() }
        }
        (
            _,
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "ExpiredToken"
            | "TokenRefreshRequired"
            | "AuthenticationFailed"
            | "InvalidAuthenticationInfo",
        )
        | (401, _) => ObjectError::WrongCredentials { host, answer, provider: uri.provider, variables },
        (403 | 409, _) => ObjectError::AccessDenied { host, answer, uri: Box::new(uri), variables },
        (412 | 416, _) => ObjectError::Changed { uri },
        (404, _) if uri.key.is_empty() => ObjectError::NoBucket { host, uri },
        (404, _) => ObjectError::NoObject { uri },
        _ => ObjectError::Unreadable { uri, reason: format!("{host} answered {answer}") },
    }
}
