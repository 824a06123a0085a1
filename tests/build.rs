//! Sets the rpath of binaries and tests to the libtorch that the variable `LIBTORCH` in `.cargo/config.toml` names.
//! Even a test that calls no function of the trainer needs this rpath, because the linker may keep parts of the trainer
//! in the test's program. In the binary `faulty`, the option `--wrap` redirects the calls of two kernels to functions
//! of that binary.

fn main() {
    if std::env::var("CARGO_PKG_NAME").is_ok_and(|name| name == "stagecoach-tests") {
        for kernel in ["sc_rms_norm", "sc_rms_norm_backward"] {
            println!("cargo:rustc-link-arg-bin=faulty=-Wl,--wrap={kernel}");
        }
    }
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
