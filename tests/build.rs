//! Lets binaries that contain the trainer find libtorch at run time where `.cargo/config.toml` says it is.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{libtorch}/lib");
    }
}
