//! Lets binaries and tests find libtorch at run time where `.cargo/config.toml` says it is. The linker may keep parts
//! of the trainer even in a test that calls none of them. Also replaces two kernels by functions of the binary
//! `faulty`.

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
