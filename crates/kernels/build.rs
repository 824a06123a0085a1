//! Compiles the C++ kernels against the libtorch that torch-sys links, and sets the path at which the tests find
//! libtorch.

use std::path::{Path, PathBuf};

/// The instruction sets for which the CPU kernels are compiled: libtorch's name for each set, and the compiler flags
/// that libtorch uses for it.
const INSTRUCTION_SETS: [(&str, &[&str]); 3] = [
    ("DEFAULT", &[]),
    ("AVX2", &["-mavx2", "-mfma", "-mf16c"]),
    ("AVX512", &["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mf16c"]),
];

fn main() {
    for source in ["cpu", "shim.h", "shim.cpp", "flash_attention.cpp", "allocator.cpp"] {
        println!("cargo:rerun-if-changed=src/{source}");
    }
    // torch-sys declares `links = "tch"`, so cargo passes the values that torch-sys's build script reports as DEP_TCH_*
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        println!("cargo:error=torch-sys did not say where libtorch is: run `make libtorch` first");
        return;
    };
    let include = lib.with_file_name("include");
    // If several objects contain the same inline function, the linker keeps the first copy, which must run on every
    // CPU. These files are therefore linked first: they are compiled without flags for an instruction set.
    let sources = ["shim.cpp", "flash_attention.cpp", "allocator.cpp"].map(|name| format!("src/{name}"));
    compiler(&include).files(sources).compile("stagecoach_shim");
    let x86 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    for (name, flags) in INSTRUCTION_SETS.iter().take(if x86 { 3 } else { 1 }) {
        let table = format!("kernels_{}", name.to_lowercase());
        let mut compiler = compiler(&include);
        compiler.define("CPU_CAPABILITY", *name).define(&format!("CPU_CAPABILITY_{name}"), None);
        compiler.define("KERNELS", table.as_str()).opt_level(3).flag("-fno-math-errno");
        for flag in *flags {
            compiler.flag(flag);
        }
        compiler.file("src/cpu/isa.cpp").compile(&format!("stagecoach_{table}"));
    }
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=gomp");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // `libtorch_rpath.rs` reads this value
    println!("cargo:libtorch={}", lib.display());
}

fn compiler(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).warnings(false).opt_level(2).flag("-std=c++17").flag("-fopenmp").flag("-Wno-psabi");
    build.include(include).include(include.join("torch/csrc/api/include"));
    build
}
