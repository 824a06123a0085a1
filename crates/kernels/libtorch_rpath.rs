//! The build script of packages whose binaries or tests load libtorch. The loader searches two folders for libtorch:
//! the folder `lib` beside the binary's folder (the layout of the container images), and the folder in which this build
//! found libtorch. A package that uses this script must depend on `stagecoach-kernels`, whose build script reports the
//! second folder.

fn main() {
    // without a `rerun-if` condition, cargo runs this script again after each change of a source file
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(lib) = std::env::var("DEP_STAGECOACH_KERNELS_LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:{lib}");
    }
}
