//! Writes the CustomResourceDefinition to stdout: `make manifests`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match stagecoach_api::crd::manifest() {
        Ok(yaml) => {
            print!("{yaml}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("crdgen: {error}");
            ExitCode::FAILURE
        }
    }
}
