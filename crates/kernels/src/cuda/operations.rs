//! Implements the operations by launching kernels, and chooses the number of blocks of each launch. Sums are divided
//! into pieces. The pieces, and the number of threads that sum a piece, depend only on shapes. The bits of a sum
//! therefore do not depend on the number of blocks.

use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};

use tch::{Kind, Tensor};

use super::{Grid, Launcher};
use crate::{AdamWOptions, AdamWParameter, CrossEntropy, Heads, RmsNormGradients, Rotation};

/// The number of threads of a block, for kernels in which a thread processes elements or columns.
const THREADS: u32 = 256;
/// The number of neighbouring elements that a thread reads at a time (`block.cuh`).
const GROUP: i64 = 8;
/// The maximum number of token positions in a piece of an embedding's gradient. The positions are first sorted by token
/// id and then divided into pieces.
const EMBEDDING_PIECE: i64 = 64;
/// The smallest number of rows in a piece of a sum over rows.
const MIN_ROWS_PER_PIECE: i64 = 32;
/// The largest number of pieces of a sum over rows. The kernel `sum_pieces` adds the sums of the pieces.
const MAX_PIECES: i64 = 512;
/// The number of pieces into which each tensor is divided when its squares are summed.
const SQUARED_NORM_PIECES: u32 = 128;

/// Expands to the name of the kernel for this type of activations.
macro_rules! of_kind {
    ($name:literal, $kind:expr) => {
        if $kind == Kind::BFloat16 { concat!($name, "_bf16") } else { concat!($name, "_f32") }
    };
}

/// Launches a kernel. Each argument must have the type of the kernel's parameter: an address, `i64`, a float, or a
/// structure.
macro_rules! launch {
    ($on:expr, $kernel:expr, $grid:expr; $($argument:expr),*) => {
        // SAFETY: the types are those of the kernel's parameters; `data` and the shapes ensure that the memory is large
        // enough.
        unsafe { $on.launch($kernel, $grid, &mut [$(from_ref(&$argument).cast_mut().cast::<c_void>()),*]) }
    };
}

/// Returns the address of a tensor for a kernel. The tensor must be contiguous, of type `kind`, and on the launcher's
/// device.
#[track_caller]
fn data(on: &dyn Launcher, tensor: &Tensor, kind: Kind) -> *mut c_void {
    let fits = tensor.kind() == kind && tensor.is_contiguous() && tensor.device() == on.device();
    assert!(fits, "a kernel takes contiguous {kind:?} tensors on its device, got {tensor:?}");
    tensor.data_ptr()
}

fn data_or_null(on: &dyn Launcher, tensor: Option<&Tensor>, kind: Kind) -> *mut c_void {
    tensor.map_or(null_mut(), |tensor| data(on, tensor, kind))
}

/// Returns the number of rows, and the width of a row.
fn matrix(tensor: &Tensor) -> (i64, i64) {
    let width = tensor.size().last().copied().unwrap_or(1);
    (tensor.numel() as i64 / width.max(1), width)
}

#[track_caller]
fn check(fits: bool, tensor: &Tensor) {
    assert!(fits, "shapes do not fit {:?}", tensor.size());
}

fn div_ceil(count: i64, size: i64) -> i64 {
    (count + size - 1) / size
}

/// Returns the number of blocks for `items` items: at least one, even without items.
fn blocks(on: &dyn Launcher, items: i64) -> u32 {
    items.clamp(1, i64::from(on.max_blocks())) as u32
}

/// Returns a grid in which a thread processes one item or several items.
fn item_grid(on: &dyn Launcher, items: i64) -> Grid {
    Grid { x: blocks(on, div_ceil(items, THREADS.into())), y: 1, threads: THREADS }
}

/// Returns a grid in which a block processes one or more rows, and a thread processes one or more groups of [`GROUP`]
/// elements in a row.
fn row_grid(on: &dyn Launcher, rows: i64, width: i64) -> Grid {
    let threads = (div_ceil(width, GROUP).clamp(1, 512) as u32).next_multiple_of(32);
    Grid { x: blocks(on, rows), y: 1, threads }
}

/// Returns the number of rows in each piece of a sum over rows, and the number of pieces.
fn pieces(rows: i64) -> (i64, i64) {
    let rows_of_piece = MIN_ROWS_PER_PIECE.max(div_ceil(rows, MAX_PIECES));
    (rows_of_piece, div_ceil(rows, rows_of_piece).max(1))
}

/// Returns `f32[width]`, the sum of the rows of a temporary tensor `partial[pieces, width]`. `fill` computes all
/// pieces. Its arguments are the number of pieces, the address of `partial`, and the number of rows of a piece.
fn sum_by_pieces(on: &dyn Launcher, (rows, width): (i64, i64), fill: impl FnOnce(u32, *mut c_void, i64)) -> Tensor {
    let (rows_of_piece, pieces) = pieces(rows);
    let (partial, sums) = (on.empty(&[pieces, width], Kind::Float), on.empty(&[width], Kind::Float));
    let partial_data = data(on, &partial, Kind::Float);
    fill(pieces as u32, partial_data, rows_of_piece);
    let grid = Grid { x: blocks(on, div_ceil(width, 32)), y: 1, threads: 512 };
    launch!(on, "sum_pieces", grid; partial_data, data(on, &sums, Kind::Float), pieces, width);
    sums
}

/// Returns `f64[rows]`, the sums of the rows of `values`, `f64[rows, width]`.
fn row_sums(on: &dyn Launcher, values: &Tensor) -> Tensor {
    let (rows, width) = (values.size()[0], values.size()[1]);
    let sums = on.empty(&[rows], Kind::Double);
    let grid = Grid { x: rows as u32, y: 1, threads: THREADS };
    launch!(on, "row_sums_f64", grid; data(on, values, Kind::Double), data(on, &sums, Kind::Double), width);
    sums
}

pub(crate) fn column_sums(on: &dyn Launcher, x: &Tensor) -> Tensor {
    let (rows, width) = matrix(x);
    sum_by_pieces(on, (rows, width), |pieces, partial, rows_of_piece| {
        let kernel = of_kind!("column_sums", x.kind());
        let grid = Grid { y: pieces, ..item_grid(on, div_ceil(width, GROUP)) };
        launch!(on, kernel, grid; data(on, x, x.kind()), partial, rows, width, rows_of_piece);
    })
}

pub(crate) fn rms_norm(on: &dyn Launcher, x: &Tensor, weight: &Tensor, eps: f64) -> (Tensor, Tensor) {
    let ((rows, width), kind) = (matrix(x), x.kind());
    check(weight.numel() as i64 == width, x);
    let (y, rstd) = (on.empty(&x.size(), kind), on.empty(&[rows], Kind::Float));
    launch!(on, of_kind!("rms_norm", kind), row_grid(on, rows, width);
        data(on, x, kind), data(on, weight, Kind::Float), data(on, &y, kind), data(on, &rstd, Kind::Float), rows, width,
        eps as f32);
    (y, rstd)
}

pub(crate) fn rms_norm_backward(
    on: &dyn Launcher,
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    residual_gradient: Option<&Tensor>,
) -> RmsNormGradients {
    let ((rows, width), kind) = (matrix(x), x.kind());
    let same = |tensor: &Tensor| tensor.numel() == x.numel();
    let fits = same(dy) && residual_gradient.is_none_or(same) && weight.numel() as i64 == width;
    check(fits && rstd.numel() as i64 == rows, x);
    let [dx, y] = [(); 2].map(|()| on.empty(&x.size(), kind));
    let [dy, x] = [dy, x].map(|tensor| data(on, tensor, kind));
    let rstd = data(on, rstd, Kind::Float);
    let weight = data(on, weight, Kind::Float);
    let residual = data_or_null(on, residual_gradient, kind);
    let dweight = sum_by_pieces(on, (rows, width), |pieces, partial, rows_of_piece| {
        let grid = Grid { x: pieces, ..row_grid(on, rows, width) };
        launch!(on, of_kind!("rms_norm_backward", kind), grid;
            dy, x, weight, rstd, residual, data(on, &dx, kind), data(on, &y, kind), partial, rows, width, rows_of_piece);
    });
    RmsNormGradients { dx, dweight, y }
}

pub(crate) fn swiglu(on: &dyn Launcher, gate_up: &Tensor) -> Tensor {
    let ((rows, both), kind) = (matrix(gate_up), gate_up.kind());
    let width = both / 2;
    let out = on.empty(&[rows, width], kind);
    launch!(on, of_kind!("swiglu", kind), row_grid(on, rows, width);
        data(on, gate_up, kind), data(on, &out, kind), rows, width);
    out
}

pub(crate) fn swiglu_backward(on: &dyn Launcher, dout: &Tensor, gate_up: &Tensor) -> Tensor {
    let ((rows, both), kind) = (matrix(gate_up), gate_up.kind());
    let width = both / 2;
    check(dout.numel() * 2 == gate_up.numel(), gate_up);
    let out = on.empty(&[rows, width], kind);
    launch!(on, of_kind!("swiglu_backward", kind), row_grid(on, rows, width);
        data(on, dout, kind), data(on, gate_up, kind), data(on, &out, kind), rows, width);
    out
}

pub(crate) fn rotary(on: &dyn Launcher, qkv: &Tensor, rotation: Rotation, heads: Heads, inverse: bool) {
    let (width, size) = (matrix(qkv).1, qkv.kind().elt_size_in_bytes());
    let q = data(on, qkv, qkv.kind());
    let k = q.wrapping_byte_add(size * (heads.heads * heads.head_dim) as usize);
    launch_rotary(on, [q, k, null_mut()], [width; 2], qkv, rotation, heads, inverse);
}

/// Returns the gradients of queries, keys and values side by side. The gradients of queries and keys are rotated back.
pub(crate) fn rotate_back(on: &dyn Launcher, gradients: [&Tensor; 3], rotation: Rotation, heads: Heads) -> Tensor {
    let [dq, dk, dv] = gradients;
    let (q_width, kv_width) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    let elements = |x: &Tensor| x.numel() as i64;
    let rows = elements(dq) / q_width;
    check(elements(dq) == rows * q_width && [dk, dv].map(elements) == [rows * kv_width; 2], dq);
    let dqkv = on.empty(&[rows, q_width + 2 * kv_width], dq.kind());
    let from = gradients.map(|gradient| data(on, gradient, dq.kind()));
    launch_rotary(on, from, [q_width, kv_width], &dqkv, rotation, heads, true);
    dqkv
}

/// Rotates the queries and keys, and writes them to `qkv`. Also copies the values, unless their address is null. `from`
/// has the addresses of the queries, the keys and the values. `widths` has the distance between two rows in elements,
/// first for the queries, then for the keys and the values.
fn launch_rotary(
    on: &dyn Launcher,
    from: [*mut c_void; 3],
    widths: [i64; 2],
    qkv: &Tensor,
    Rotation { cos, sin, length }: Rotation,
    Heads { heads, kv_heads, head_dim }: Heads,
    inverse: bool,
) {
    let ((rows, width), kind, half) = (matrix(qkv), qkv.kind(), head_dim / 2);
    let table_fits = |table: &Tensor| table.numel() as i64 >= length * half;
    let width_fits = width == (heads + 2 * kv_heads) * head_dim;
    check(width_fits && length > 0 && table_fits(cos) && table_fits(sin), qkv);
    let [cos, sin] = [cos, sin].map(|table| data(on, table, Kind::Float));
    let sign = if inverse { -1f32 } else { 1f32 };
    let ([q, k, v], [q_width, kv_width]) = (from, widths);
    launch!(on, of_kind!("rotary", kind), row_grid(on, rows, (heads + kv_heads) * half);
        q, k, v, q_width, kv_width, data(on, qkv, kind), cos, sin, rows, length, heads, kv_heads, half, sign);
}

/// Computes the cross-entropies. `dlogits` may be the same tensor as `logits`.
pub(crate) fn cross_entropy(
    on: &dyn Launcher,
    logits: &Tensor,
    targets: &Tensor,
    dlogits: Option<&Tensor>,
    scale: f64,
) -> CrossEntropy {
    let (rows, vocab) = matrix(logits);
    let kind = dlogits.map_or(Kind::Float, Tensor::kind);
    let fits = dlogits.is_none_or(|dlogits| dlogits.numel() == logits.numel());
    check(fits && targets.numel() as i64 == rows, logits);
    let losses = on.empty(&[1, rows], Kind::Double);
    launch!(on, of_kind!("cross_entropy", kind), row_grid(on, rows, vocab);
        data(on, logits, Kind::Float), data(on, targets, Kind::Int64), data_or_null(on, dlogits, kind),
        data(on, &losses, Kind::Double), rows, vocab, scale);
    CrossEntropy { sum: row_sums(on, &losses).squeeze(), row_losses: losses.squeeze_dim(0) }
}

/// Returns the squared norms, `f64[tensors]`.
pub(crate) fn squared_norms(on: &dyn Launcher, tensors: &[&Tensor]) -> Tensor {
    if tensors.is_empty() {
        return on.empty(&[0], Kind::Double);
    }
    let row = |list: &&Tensor| [data(on, list, Kind::Float) as i64, list.numel() as i64];
    let table = on.upload(&tensors.iter().flat_map(row).collect::<Vec<_>>());
    let partial = on.empty(&[tensors.len() as i64, SQUARED_NORM_PIECES.into()], Kind::Double);
    let grid = Grid { x: SQUARED_NORM_PIECES, y: tensors.len() as u32, threads: THREADS };
    launch!(on, "squared_norms", grid; data(on, &table, Kind::Int64), data(on, &partial, Kind::Double));
    row_sums(on, &partial)
}

/// The struct `CudaAdamWOptions` of `adamw.cu`.
#[repr(C)]
struct CudaAdamWOptions {
    step_size: f32,
    rsqrt_bias_correction2: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    eps: f32,
    clip: f32,
    lr: f64,
}

impl From<AdamWOptions> for CudaAdamWOptions {
    fn from(AdamWOptions { lr, beta1, beta2, eps, step, clip }: AdamWOptions) -> CudaAdamWOptions {
        CudaAdamWOptions {
            step_size: (lr / (1.0 - beta1.powf(step))) as f32,
            rsqrt_bias_correction2: (1.0 / (1.0 - beta2.powf(step)).sqrt()) as f32,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            eps: eps as f32,
            clip: clip as f32,
            lr,
        }
    }
}

pub(crate) fn adamw(on: &dyn Launcher, parameters: &[AdamWParameter], options: AdamWOptions) {
    let Some(largest) = parameters.iter().map(|parameter| parameter.value.numel() as i64).max() else { return };
    // a row has the layout of `AdamWParameter` in `adamw.cu`
    let row = |parameter: &AdamWParameter| {
        let AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute, weight_decay } = *parameter;
        let tensors = [value, gradient, exp_avg, exp_avg_sq];
        check([gradient, exp_avg, exp_avg_sq].into_iter().chain(compute).all(|t| t.numel() == value.numel()), value);
        let compute = data_or_null(on, compute, Kind::BFloat16);
        let addresses = tensors.map(|tensor| data(on, tensor, Kind::Float)).into_iter().chain([compute]);
        let numbers = [value.numel() as i64, weight_decay.to_bits() as i64];
        addresses.map(|address| address as i64).chain(numbers).collect::<Vec<_>>()
    };
    let table = on.upload(&parameters.iter().flat_map(row).collect::<Vec<_>>());
    let grid = Grid { y: parameters.len() as u32, ..item_grid(on, largest) };
    launch!(on, "adamw", grid; data(on, &table, Kind::Int64), CudaAdamWOptions::from(options));
}

/// Adds each row `dy[i]` to the row `accumulator[token_ids[i]]`. The rows of one token id are added in their order, in
/// pieces of at most [`EMBEDDING_PIECE`] rows.
pub(crate) fn accumulate_embedding(on: &dyn Launcher, accumulator: &Tensor, token_ids: &Tensor, dy: &Tensor) {
    let ((tokens, width), kind) = (matrix(dy), dy.kind());
    check(token_ids.numel() as i64 == tokens && matrix(accumulator).1 == width, dy);
    let (sorted, order) = token_ids.view([-1]).sort_stable(true, 0, false);
    let [sorted, order] = [&sorted, &order].map(|ids| data(on, ids, Kind::Int64));
    // a piece is a range of the sorted token ids, so only its first and its last token id can occur in other pieces
    let partial = on.empty(&[2 * div_ceil(tokens, EMBEDDING_PIECE), width], Kind::Float);
    let [accumulator, partial] = [accumulator, &partial].map(|sums| data(on, sums, Kind::Float));
    let grid = row_grid(on, tokens, width);
    launch!(on, of_kind!("embedding_backward", kind), grid;
        accumulator, partial, sorted, order, data(on, dy, kind), tokens, width, EMBEDDING_PIECE);
    launch!(on, "embedding_pieces", grid; accumulator, partial, sorted, tokens, width, EMBEDDING_PIECE);
}
