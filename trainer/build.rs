//! Compiles the C++ shim against the libtorch that torch-sys links, and lets our binaries find it at run time.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/autograd/shim.cpp");
    // torch-sys has `links = "tch"`: cargo passes what it found as DEP_TCH_*.
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        println!("cargo:error=torch-sys did not say where libtorch is: run `make libtorch` first");
        return;
    };
    let include = lib.with_file_name("include");
    cc::Build::new()
        .cpp(true)
        .warnings(false)
        .opt_level(2)
        .flag("-std=c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .file("src/autograd/shim.cpp")
        .compile("stagecoach_shim");
    println!("cargo:rustc-link-lib=torch_cpu");
    // Two places: beside the binary, as the images lay it out, and where this build found it.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:{}", lib.display());
}
