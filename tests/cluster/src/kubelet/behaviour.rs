//! The behaviour of a pod's container.

use std::collections::BTreeMap;
use std::time::Duration;

/// The annotation with a pod's behaviour, in the form of [`Behaviour::parse`].
pub(super) const ANNOTATION: &str = "stagecoach.test/behaviour";

/// The behaviour of a pod's trainer container. All variants except `Command` are scripts: the kubelet simulates the
/// container. Until a script ends, it serves `/healthz`, `/readyz` and `/status` on the pod's address, as a stage does,
/// unless its variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Runs until SIGTERM, and exits with 143 after `drain`.
    Run {
        /// The time from SIGTERM to the exit.
        drain: Duration,
    },
    /// Exits by itself.
    Exit {
        /// The exit code.
        code: i32,
        /// The time from the start to the exit.
        after: Duration,
        /// The termination message.
        message: String,
    },
    /// Runs, but `/readyz` answers 503.
    NeverReady,
    /// Runs and is ready, but ignores SIGTERM.
    IgnoreSigterm,
    /// Runs, but answers no request and ignores SIGTERM.
    Hang,
    /// Never starts, because the image can't be pulled.
    ImagePullError,
    /// Runs a real program with the container's environment. In the values of the environment, the kubelet replaces a
    /// path of a mount by its own folder for the volume.
    Command(Vec<String>),
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour::Run { drain: Duration::ZERO }
    }
}

impl Behaviour {
    /// Parses an annotation: `run [DRAIN_MS]`, `exit CODE [AFTER_MS [MESSAGE]]`, `never-ready`, `ignore-sigterm`,
    /// `hang`, `image-pull-error`, `command PROGRAM [ARGUMENT]...`.
    ///
    /// # Panics
    /// If the text has any other form.
    pub fn parse(text: &str) -> Behaviour {
        let mut words = text.splitn(4, ' ');
        let name = words.next().unwrap_or_default();
        let mut number = |or: i32| words.next().map_or(or, |word| word.parse().unwrap_or_else(|_| panic!("{text:?}")));
        let milliseconds = |number: i32| Duration::from_millis(number.max(0) as u64);
        match name {
            "run" => Behaviour::Run { drain: milliseconds(number(0)) },
            "exit" => {
                let (code, after) = (number(0), milliseconds(number(0)));
                Behaviour::Exit { code, after, message: words.next().unwrap_or_default().into() }
            }
            "never-ready" => Behaviour::NeverReady,
            "ignore-sigterm" => Behaviour::IgnoreSigterm,
            "hang" => Behaviour::Hang,
            "image-pull-error" => Behaviour::ImagePullError,
            "command" => Behaviour::Command(text.split_whitespace().skip(1).map(String::from).collect()),
            _ => panic!("no behaviour of a pod is called {text:?}"),
        }
    }
}

/// The attributes that a pod had when it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
    /// The name of the pod's node.
    pub node: String,
    /// The IP address, usually within 127.0.0.0/8.
    pub address: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
    /// The trainer container's image.
    pub image: String,
    /// The trainer container's environment variables, with each `valueFrom` and `envFrom` replaced by the values.
    pub env: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_read() {
        let ms = Duration::from_millis;
        let read = Behaviour::parse;
        assert_eq!(read("run"), Behaviour::default());
        assert_eq!(read("run 250"), Behaviour::Run { drain: ms(250) });
        assert_eq!(read("exit 3"), Behaviour::Exit { code: 3, after: ms(0), message: String::new() });
        let message = "{\"kind\": \"Error\"}";
        assert_eq!(
            read(&format!("exit 1 50 {message}")),
            Behaviour::Exit { code: 1, after: ms(50), message: message.into() }
        );
        assert_eq!(read("command sleep 5"), Behaviour::Command(vec!["sleep".into(), "5".into()]));
    }
}
