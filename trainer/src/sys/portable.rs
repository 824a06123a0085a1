//! `training.kernels: Portable`: one instruction set on every x86-64 processor that has it.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::stage_error::StageError;

/// The variables that decide what libtorch's libraries dispatch to, with their values under `Portable`; those without one
/// must not be set. MKL has kernels for one maker's processors: of its branches, only COMPATIBLE is meant for those of others
/// too.
const PINNED: [(&str, Option<&str>); 9] = [
    ("ATEN_CPU_CAPABILITY", Some("avx2")),
    ("MKL_CBWR", Some("COMPATIBLE")),
    // else it would take fewer threads on a processor with fewer cores
    ("MKL_DYNAMIC", Some("FALSE")),
    ("ONEDNN_MAX_CPU_ISA", Some("AVX2")),
    ("DNNL_MAX_CPU_ISA", Some("AVX2")),
    ("ONEDNN_DEFAULT_FPMATH_MODE", Some("STRICT")),
    ("MKL_ENABLE_INSTRUCTIONS", None),
    ("MKL_DEBUG_CPU_TYPE", None),
    ("GLIBC_TUNABLES", None),
];

/// Makes this process one whose libraries dispatch to AVX2, whatever its environment says. The libraries read their variables
/// once, so unless all are right this replaces the process by itself: to be called before anything is computed.
///
/// # Errors
/// If the processor has no AVX2 or FMA, or the program can't be started again.
pub(crate) fn pin_instruction_set() -> Result<(), StageError> {
    if !has_baseline() {
        return Err(StageError::invalid(
            "spec.training.kernels is Portable, and this processor lacks AVX2 or FMA: take another node, or Fastest in a new job",
        ));
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
    let error = command.exec();
    Err(StageError::invalid(format!(
        "spec.training.kernels is Portable, and this program could not start itself again: {error}"
    )))
}

#[cfg(target_arch = "x86_64")]
fn has_baseline() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_baseline() -> bool {
    false
}
