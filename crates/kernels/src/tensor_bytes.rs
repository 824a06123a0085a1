//! A tensor's memory as bytes.

use tch::{Device, Tensor};

/// Returns the memory of a contiguous CPU tensor. Code that converts the result to a reference must rule out
/// conflicting reads and writes.
pub fn bytes_of(tensor: &Tensor) -> *mut [u8] {
    debug_assert!(tensor.is_contiguous() && tensor.device() == Device::Cpu);
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    // an empty tensor has no memory, so its pointer is null, but a reference must not be null
    let start = if bytes == 0 { std::ptr::dangling_mut() } else { tensor.data_ptr().cast() };
    std::ptr::slice_from_raw_parts_mut(start, bytes)
}
