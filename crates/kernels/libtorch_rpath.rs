//! The build script of packages whose binaries or tests load libtorch. The loader searches two folders for libtorch:
//! the one beside the binary, as in the images, and the one in which this build found libtorch. Such a package depends
//! on `stagecoach-kernels`.

fn main() {
    // without a condition, cargo runs this script again after each change of a source file
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(lib) = std::env::var("DEP_STAGECOACH_KERNELS_LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:{lib}");
    }
}
