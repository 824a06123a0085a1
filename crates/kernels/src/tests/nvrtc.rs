//! Compiles the kernels with NVIDIA's compiler for the supported GPUs, and tests the errors that are reported if the
//! compiler is missing or wrong. The tests need no GPU.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use super::{c_library, run_in_child};
use crate::cuda::{KERNELS, KernelSource, NVRTC_FUNCTIONS, Nvrtc, NvrtcError, SOURCES};

/// The environment variable that names the folder of NVRTC.
const FOLDER: &str = "STAGECOACH_NVRTC";

fn folder() -> PathBuf {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    folder.unwrap_or_else(|| {
        panic!("{FOLDER} is not set: run `make nvrtc`, and set {FOLDER} to the folder that the command prints")
    })
}

/// The resources of a kernel, as the assembler reports them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Resources {
    registers: u32,
    spilled_bytes: u32,
}

/// Returns the number before `unit`, such as 40 in "Used 40 registers, used 1 barriers".
fn number_before(line: &str, unit: &str) -> Option<u32> {
    line.split(unit).next()?.rsplit(' ').next()?.parse().ok()
}

/// Returns the kernels in a log, with their resources.
fn resources(log: &str) -> BTreeMap<&str, Resources> {
    let mut kernels = BTreeMap::new();
    let mut current = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            current = rest.split('\'').next();
        }
        let Some(kernel) = current else { continue };
        let of_kernel: &mut Resources = kernels.entry(kernel).or_default();
        for unit in [" bytes spill stores", " bytes spill loads"].into_iter().filter(|unit| line.contains(unit)) {
            of_kernel.spilled_bytes += number_before(line, unit).unwrap();
        }
        if line.contains(" registers") {
            of_kernel.registers = number_before(line, " registers").unwrap();
        }
    }
    kernels
}

#[test]
fn the_report_of_the_assembler_is_understood() {
    let log = "ptxas info    : Compiling entry function 'one' for 'sm_90'\n\
               ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
               ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem\n";
    assert_eq!(resources(log), BTreeMap::from([("one", Resources { registers: 40, spilled_bytes: 16 })]));
}

/// A block has at most 65,536 registers: 128 for each of 512 threads.
#[test]
fn every_kernel_is_compiled_for_every_architecture_without_spills() {
    let nvrtc = Nvrtc::open(Some(&folder())).unwrap();
    for architecture in ["sm_80", "sm_90", "sm_100"] {
        let compiled = nvrtc.compile(&SOURCES, architecture).unwrap();
        assert!(compiled.cubin.starts_with(b"\x7fELF"));
        let resources = resources(&compiled.log);
        println!("NVRTC {} for {architecture}:", nvrtc.version());
        for (kernel, Resources { registers, spilled_bytes }) in &resources {
            println!("  {kernel:24} {registers:3} registers, {spilled_bytes} bytes spilled");
        }
        assert!(resources.keys().copied().eq(KERNELS), "{:?} are listed, {:?} compiled", KERNELS, resources.keys());
        let fits = |resources: &Resources| (1..=128).contains(&resources.registers) && resources.spilled_bytes == 0;
        assert!(resources.values().all(fits), "for {architecture}, some kernels need more than 128 registers or spill");
    }
}

/// The elementwise kernels are as fast as memory only if a thread moves 16 bytes at a time.
#[test]
fn rows_are_read_and_written_in_vectors() {
    let ptx = Nvrtc::open(Some(&folder())).unwrap().ptx(&SOURCES, "compute_90").unwrap();
    let kernels: BTreeMap<&str, &str> =
        ptx.split(".entry ").skip(1).filter_map(|text| Some((text.split('(').next()?.trim(), text))).collect();
    assert!(kernels.keys().copied().eq(KERNELS));
    // the excluded kernels read tables, compute in double precision, or reached the speed of memory in measurements
    let in_vectors = |kernel: &str| !["adamw", "row_sums_f64", "squared_norms", "sum_pieces"].contains(&kernel);
    for (kernel, text) in kernels.into_iter().filter(|(kernel, _)| in_vectors(kernel)) {
        for access in ["ld.global", "st.global"] {
            let is_vector = |line: &str| line.contains(access) && line.contains(".v4.");
            assert!(text.lines().any(is_vector), "{kernel} has no {access} of 16 bytes");
        }
    }
}

#[test]
fn what_nvrtc_does_not_compile_is_reported() {
    let nvrtc = Nvrtc::open(Some(&folder())).unwrap();
    let old = nvrtc.compile(&SOURCES, "sm_20").unwrap_err().to_string();
    assert_eq!(old, "NVRTC 13.0 does not know this GPU's architecture sm_20: install a newer NVRTC");
    let wrong = KernelSource { name: "wrong.cu", text: "KERNEL(x, ()) { no_such_function(); }" };
    let reported = nvrtc.compile(&[SOURCES[0], wrong], "sm_90").unwrap_err().to_string();
    assert!(
        reported.starts_with("NVRTC 13.0 does not compile the kernels for sm_90: wrong.cu(1): error: "),
        "{reported}"
    );
}

#[test]
fn a_library_that_is_missing_or_another_one_is_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Nvrtc::open(Some(folder.path())).unwrap_err().to_string();
    let missing = open();
    assert!(missing.contains("/libnvrtc.so.13 can't be loaded: "), "{missing}");
    assert!(missing.ends_with("; NVRTC, which compiles the kernels, comes with the image trainer-cuda"), "{missing}");
    symlink(c_library(), folder.path().join("libnvrtc.so.13")).unwrap();
    let other = open();
    assert!(other.ends_with("/libnvrtc.so.13 has no nvrtcVersion: NVRTC 13.0 or newer is needed"), "{other}");
}

#[test]
fn a_missing_part_of_nvrtc_is_reported() {
    const IN_CHILD: &str = "STAGECOACH_NVRTC_WITHOUT_BUILTINS";
    if let Some(folder) = std::env::var_os(IN_CHILD) {
        let nvrtc = Nvrtc::open(Some(&PathBuf::from(folder))).unwrap();
        assert_eq!(nvrtc.compile(&SOURCES, "sm_90").unwrap_err(), NvrtcError::NoBuiltins);
        return;
    }
    let alone = tempfile::tempdir().unwrap();
    symlink(folder().join("libnvrtc.so.13"), alone.path().join("libnvrtc.so.13")).unwrap();
    let test = "tests::nvrtc::a_missing_part_of_nvrtc_is_reported";
    run_in_child(test, [(IN_CHILD, alone.path()), (FOLDER, &folder())]);
}

/// Here, the loader finds the library of an older toolkit by the name that `cudarc` tries first.
#[test]
fn an_older_nvrtc_that_the_loader_finds_first_is_an_error() {
    const IN_CHILD: &str = "STAGECOACH_NVRTC_SHADOWED";
    if std::env::var_os(IN_CHILD).is_some() {
        let error = Nvrtc::open(Some(&folder())).unwrap_err();
        assert_eq!(error, NvrtcError::Shadowed { version: "12.4".to_owned() });
        return;
    }
    let older = tempfile::tempdir().unwrap();
    let (source, library) = (older.path().join("nvrtc.c"), older.path().join("libnvrtc.so"));
    let others = NVRTC_FUNCTIONS.iter().filter(|name| **name != "nvrtcVersion");
    let others = others.map(|name| format!("int {name}(void) {{ return 1; }}\n")).collect::<String>();
    let version = "int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 4; return 0; }\n";
    std::fs::write(&source, format!("{version}{others}")).unwrap();
    let mut compiler = Command::new("cc");
    assert!(compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap().success());
    let test = "tests::nvrtc::an_older_nvrtc_that_the_loader_finds_first_is_an_error";
    run_in_child(test, [(IN_CHILD, older.path()), ("LD_LIBRARY_PATH", older.path())]);
}
