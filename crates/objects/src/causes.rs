//! The causes of an error.

use std::error::Error;
use std::io;

/// An error and the chain of its causes.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut causes = vec![error];
    let mut last = error;
    loop {
        // `source` of an I/O error skips the inner error
        let within = last.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        let Some(cause) = within.map(|error| error as &(dyn Error + 'static)).or_else(|| last.source()) else {
            return causes;
        };
        causes.push(cause);
        last = cause;
    }
}

/// The message of the innermost cause.
pub(crate) fn reason(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}
