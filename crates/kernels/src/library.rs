//! Libraries that a machine may lack. A stage opens them when it needs them, not when the process starts.

pub use libloading::os::unix::Library;
use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};

/// The reason that a library can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The loader does not find the library, or one of its dependencies.
    #[error("{name} can't be loaded: {why}")]
    Missing {
        /// The library's file name.
        name: String,
        /// The loader's message.
        why: String,
    },
    /// The library lacks a function.
    #[error("{name} has no {function}")]
    TooOld {
        /// The library's file name.
        name: String,
        /// The function's name.
        function: &'static str,
    },
}

/// Opens a library by the loader's rules.
///
/// # Errors
/// If the loader does not find the library or one of its dependencies.
pub fn open(name: &str) -> Result<Library, LibraryError> {
    // SAFETY: the library is a part of NVIDIA's driver or of CUDA, and its initialisers only set it up. A table of
    // functions (`c_functions`) keeps the library open.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|error| LibraryError::Missing { name: name.to_owned(), why: loader_message(&error) })
}

/// Checks that a library has these functions.
///
/// # Errors
/// If a function is missing.
pub(crate) fn check_functions(
    name: &str,
    library: &libloading::Library,
    functions: &[&'static str],
) -> Result<(), LibraryError> {
    for function in functions {
        // SAFETY: the function is not called.
        if unsafe { library.get::<*const ()>(*function) }.is_err() {
            return Err(LibraryError::TooOld { name: name.to_owned(), function });
        }
    }
    Ok(())
}

/// Returns the loader's message. The text of the error itself names only the call.
pub(crate) fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Declares a table of functions with C's calling convention, and the method `open`, which finds the functions in a
/// library by their names.
#[macro_export]
macro_rules! c_functions {
    ($(#[$meta:meta])* $table:ident { $($field:ident: $symbol:literal ($($argument:ty),*),)* } returns $result:ty) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// The library that contains the functions.
            _library: $crate::library::Library,
        }

        impl $table {
            /// Opens the library of this name.
            ///
            /// # Errors
            /// If the library can't be loaded, or lacks one of the functions.
            pub(crate) fn open(name: &str) -> Result<$table, $crate::library::LibraryError> {
                let library = $crate::library::open(name)?;
                $(
                    // SAFETY: this is the function's type in the library's C header.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol) };
                    let $field = *$field.map_err(|_| $crate::library::LibraryError::TooOld {
                        name: name.to_owned(),
                        function: $symbol,
                    })?;
                )*
                Ok($table { $($field,)* _library: library })
            }
        }
    };
}
