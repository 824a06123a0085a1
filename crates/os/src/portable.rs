//! Implements `training.kernels: Portable`: libtorch computes with AVX2 on every x86-64 processor, so that the results
//! do not depend on the processor's model.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The environment variables that select the CPU instructions for libtorch's libraries, with their values under
/// `Portable`. A variable with `None` must not be set. MKL_CBWR selects the code branch of MKL. COMPATIBLE is the only
/// branch that MKL also runs on processors that are not from Intel.
const PINNED: [(&str, Option<&str>); 9] = [
    ("ATEN_CPU_CAPABILITY", Some("avx2")),
    ("MKL_CBWR", Some("COMPATIBLE")),
    // MKL would otherwise use fewer threads on a processor with fewer cores
    ("MKL_DYNAMIC", Some("FALSE")),
    ("ONEDNN_MAX_CPU_ISA", Some("AVX2")),
    ("DNNL_MAX_CPU_ISA", Some("AVX2")),
    ("ONEDNN_DEFAULT_FPMATH_MODE", Some("STRICT")),
    ("MKL_ENABLE_INSTRUCTIONS", None),
    ("MKL_DEBUG_CPU_TYPE", None),
    ("GLIBC_TUNABLES", None),
];

/// The reason why this process can't compute with the portable instruction set.
#[derive(Debug, thiserror::Error)]
pub enum PortableError {
    /// The processor lacks AVX2 or FMA.
    #[error(
        "spec.training.kernels is Portable, and this processor lacks AVX2 or FMA: use a node with AVX2 and FMA, or set \
         spec.training.kernels to Fastest in a new job"
    )]
    NoAvx2,
    /// The process could not restart.
    #[error("spec.training.kernels is Portable, and this program could not start itself again: {0}")]
    Restart(std::io::Error),
}

/// Makes the libraries of this process use AVX2, whatever the environment variables are. The libraries read their
/// variables only once, when they start. If a variable has another value, this function therefore restarts the program
/// with the right variables. The program must call this function before any computation.
///
/// # Errors
/// Returns an error if the processor has no AVX2 or FMA, or if the program can't be restarted.
pub fn pin_instruction_set() -> Result<(), PortableError> {
    if !has_baseline() {
        return Err(PortableError::NoAvx2);
    }
    if PINNED.iter().all(|(name, value)| env::var_os(name).as_deref() == value.map(AsRef::as_ref)) {
        return Ok(());
    }
    let mut arguments = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_default()).args(arguments);
    for (name, value) in PINNED {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Err(PortableError::Restart(command.exec()))
}

#[cfg(target_arch = "x86_64")]
fn has_baseline() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_baseline() -> bool {
    false
}
