//! The build script of packages whose binaries or tests load libtorch. The loader finds libtorch in two places: beside
//! the binary, as in the images, and in the folder in which this build found it. Such a package depends on
//! `stagecoach-kernels`.

fn main() {
    // without a condition, cargo runs this again for each change of a source file
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if let Ok(lib) = std::env::var("DEP_STAGECOACH_KERNELS_LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib:{lib}");
    }
}
