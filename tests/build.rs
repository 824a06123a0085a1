//! Lets binaries that contain the trainer find libtorch at run time where `.cargo/config.toml` says it is, and puts functions of the
//! binary `faulty` in the place of two kernels.

fn main() {
    for kernel in ["sc_rms_norm", "sc_rms_norm_backward"] {
        println!("cargo:rustc-link-arg-bin=faulty=-Wl,--wrap={kernel}");
    }
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{libtorch}/lib");
    }
}
