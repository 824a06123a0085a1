//! Tests the client against object stores on this machine.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod listings;
mod others;
mod providers;
mod refusals;
mod streams;

use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stagecoach_objects::{OBJECT_RETRY_POLICY, Object, ObjectClient, ObjectError};
use stagecoach_remote::Waiter;
use stagecoach_test_objects::TestStore;

/// A secret that no message may contain.
const SECRET: &str = "planted-secret-AbC/123+";

/// A client, and the log of its messages to the user and its waits before retries.
struct Reader {
    client: ObjectClient,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    notices: Vec<String>,
    waited: Duration,
}

impl Reader {
    /// Returns a client that has access keys for `store`.
    fn new(store: &TestStore) -> Reader {
        Reader::of_endpoint(&store.endpoint())
    }

    fn of_endpoint(endpoint: &str) -> Reader {
        Reader::with(&[
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", "AKIAPLANTED"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ])
    }

    fn with(variables: &[(&str, &str)]) -> Reader {
        let log = Arc::new(Mutex::new(Log::default()));
        let (waits, notices) = (log.clone(), log.clone());
        let pause = Arc::new(move |wait| waits.lock().unwrap().waited += wait);
        let notice = Arc::new(move |text: &str| notices.lock().unwrap().notices.push(text.to_owned()));
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Reader { client: ObjectClient::new(variables, OBJECT_RETRY_POLICY, Waiter { pause, notice }).unwrap(), log }
    }

    fn list(&self, uri: &str) -> Result<Vec<Object>, ObjectError> {
        self.client.list(&uri.parse()?)
    }

    /// Returns the keys that a URI matches.
    fn keys(&self, uri: &str) -> Vec<String> {
        self.list(uri).unwrap().into_iter().map(|object| object.uri.key).collect()
    }

    /// Returns the error message of a listing of `uri`.
    fn refused(&self, uri: &str) -> String {
        let error = self.list(uri).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
        error.to_string()
    }

    fn bytes(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let mut bytes = Vec::new();
        match self.client.open(object, range)?.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(ObjectError::within(&error).expect("an error of the store").clone()),
        }
    }
}
