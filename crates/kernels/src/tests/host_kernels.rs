//! The GPU kernels on the host: `HostKernels` compiles them with `cuda/host.h` and launches them. The buffers of the
//! kernels end where accessible memory ends, so that an access after a buffer faults.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use tch::{Device, Kind, Tensor};

use crate::cuda::{Grid, KERNELS, Launcher, SOURCES};

type Kernel = unsafe extern "C" fn(u32, u32, u32, *const *mut c_void, bool) -> *const c_char;

fn cuda_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda").join(name)
}

/// The kernels, compiled for the host.
pub(super) struct HostKernels {
    pub(super) library: &'static Library,
    pub(super) max_blocks: u32,
    /// Whether the blocks, and the threads of a block, run in the opposite order.
    pub(super) backwards: bool,
}

impl HostKernels {
    /// Compiles all sources. If `removed` is set, leaves out the barrier with this index in `block.cuh`. If `counts` is
    /// set, the library counts the bytes that the kernels read and write (`host_traffic.cpp`).
    pub(super) fn compile(removed: Option<usize>, counts: bool) -> Library {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(cuda_source("host.h"), folder.path().join("host.h")).unwrap();
        let mut main = String::new();
        for file in &SOURCES {
            let mut text = file.text.to_owned();
            if let (true, Some(removed)) = (file.name == "block.cuh", removed) {
                let (at, barrier) = text.match_indices("__syncthreads();").nth(removed).unwrap();
                text.replace_range(at..at + barrier.len(), "");
            }
            std::fs::write(folder.path().join(file.name), text).unwrap();
            if file.name.ends_with(".cu") {
                main += &format!("#include \"{}\"\n", file.name);
            }
        }
        let (source, library) = (folder.path().join("kernels.cpp"), folder.path().join("kernels.so"));
        std::fs::write(&source, main).unwrap();
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC"]);
        if counts {
            // the compiled code calls a function of the sanitizer for each access, and the linker binds this function
            // to `host_traffic.cpp`
            let object = folder.path().join("kernels.o");
            let mut counted = Command::new("c++");
            counted.args(compiler.get_args()).args(["-fsanitize=thread", "-c"]).arg(&source).arg("-o").arg(&object);
            assert!(counted.status().unwrap().success());
            compiler.arg(&object).arg(cuda_source("host_traffic.cpp"));
        } else {
            compiler.arg(&source);
        }
        assert!(compiler.arg("-shared").arg("-o").arg(&library).status().unwrap().success());
        // SAFETY: the library has only functions, and no initialisers that matter to this process.
        unsafe { Library::new(&library) }.unwrap()
    }

    /// Returns a launcher that uses fewer blocks than most tests have rows, so that each block processes several rows.
    pub(super) fn forwards() -> HostKernels {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        HostKernels {
            library: LIBRARY.get_or_init(|| HostKernels::compile(None, false)),
            max_blocks: 3,
            backwards: false,
        }
    }

    /// Returns a launcher that uses as many blocks as requested and runs the threads in the opposite order.
    pub(super) fn backwards() -> HostKernels {
        HostKernels { max_blocks: 1 << 20, backwards: true, ..HostKernels::forwards() }
    }
}

impl Launcher for HostKernels {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn max_blocks(&self) -> u32 {
        self.max_blocks
    }

    fn empty(&self, size: &[i64], kind: Kind) -> Tensor {
        guarded(&Tensor::full(size, f64::NAN, (kind, Device::Cpu)))
    }

    fn upload(&self, table: &[i64]) -> Tensor {
        guarded(&Tensor::from_slice(table))
    }

    #[track_caller]
    unsafe fn launch(&self, kernel: &str, Grid { x, y, threads }: Grid, arguments: &mut [*mut c_void]) {
        // the process has one fault handler, which serves one kernel at a time
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        assert!(KERNELS.contains(&kernel), "{kernel} is not in the list of kernels");
        assert!(x > 0 && (1..=65_535).contains(&y) && threads.is_multiple_of(32) && (32..=512).contains(&threads));
        let failure = {
            let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: every kernel has this type on the host, and the caller guarantees its arguments.
            unsafe {
                let function = self.library.get::<Kernel>(kernel.as_bytes()).unwrap();
                let failure = function(x, y, threads, arguments.as_ptr(), self.backwards);
                (!failure.is_null()).then(|| CStr::from_ptr(failure).to_string_lossy().into_owned())
            }
        };
        if let Some(failure) = failure {
            panic!("{failure}");
        }
    }
}

/// Copies `tensor` to the end of accessible memory, so that an access after the copy faults. The copy is never freed.
pub(super) fn guarded(tensor: &Tensor) -> Tensor {
    let (page, bytes) = (4096, tensor.numel() * tensor.kind().elt_size_in_bytes());
    let data = bytes.next_multiple_of(page);
    // SAFETY: the mapping is new and is never unmapped. The tensor has the last `bytes` of the mapping's accessible
    // part.
    unsafe {
        let map =
            libc::mmap(null_mut(), data + 2 * page, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        let begin = map.cast::<u8>().add(page);
        assert!(map != libc::MAP_FAILED && (data == 0 || libc::mprotect(begin.cast(), data, 3) == 0));
        let at = begin.add(data - bytes);
        let options = (tensor.kind(), Device::Cpu);
        let strides: Vec<i64> = (0..tensor.dim()).map(|d| tensor.size()[d + 1..].iter().product()).collect();
        let mut copy = Tensor::from_blob(at, &tensor.size(), &strides, options.0, options.1);
        copy.copy_(tensor);
        copy
    }
}
