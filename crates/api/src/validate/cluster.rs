//! What only a cluster has: the Secret with credentials.

use super::Problems;
use super::names::is_dns_label;
use crate::job::PipelineJobSpec;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    if let Some(credentials) = spec.data.as_ref().and_then(|data| data.credentials.as_ref()) {
        let name = &credentials.secret_name;
        let is_name = name.is_empty() || name.split('.').all(is_dns_label);
        problems.require(is_name, "spec.data.credentials.secretName", || {
            format!(
                "\"{}\" is no name of a Secret: use lower-case letters, digits, `-` and `.`, begin and end with a letter or digit",
                name.escape_debug()
            )
        });
    }
}
