//! Multi-head latent attention on the compressed rows, in absorbed form.

use std::sync::Arc;

use cortiq_model::{MlaAttentionOp, MlaStoreOp};

use super::attention::with_cache_reads;
use super::rope::{with_cache_writes, with_rope};
use super::source;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, fold};
use crate::plan::{Class, FEW, Recorder};
use crate::shader::{Source, wgsl};
use crate::weights::DeviceMatrix;

/// Threads of a workgroup that works on one head's rope part or on the compressed row.
const STORE_THREADS: u32 = 128;

/// Threads side by side on the columns of the transposed product.
const LANES: usize = 32;

/// Rows of values that a workgroup makes.
const TILE: usize = 32;

/// Workgroups that fill a large card.
const FULL: usize = 128;

/// See [`MlaStoreOp`]: one dispatch.
pub(crate) fn mla_store(rec: &mut Recorder<'_>, op: &MlaStoreOp) -> Result<(), GpuError> {
    check_sizes(op.nope_dim, op.rope_dim, op.kv_rank)?;
    let (q, latent, norm) = (rec.activation(op.q), rec.activation(op.kv), rec.vector(op.kv_norm)?);
    let kv = rec.state.kv();
    let (group, keys, _) = rec.state.cache(op.state)?;
    let source = source(rec, "mla_store", wgsl!("mla_store.wgsl"), STORE_THREADS)
        .part(wgsl!("lib/rotated.wgsl"))
        .with("HEADS", op.heads)
        .with("NOPE_DIM", op.nope_dim)
        .with("ROPE_DIM", op.rope_dim)
        .with("KV_RANK", op.kv_rank)
        .with("Q_HEAD", op.nope_dim + op.rope_dim)
        .with("CACHE_GROUP", group)
        .with("Q_STRIDE", q.stride)
        .with("KV_STRIDE", latent.stride)
        .with("EPS", op.eps as f32);
    let source = with_cache_writes(with_rope(source, rec, Some(op.rope)), kv);
    let binds = [Bind::write(1, &q.buffer), Bind::read(2, &latent.buffer), Bind::read(3, &norm), Bind::write(4, keys)];
    let workers = op.heads as u32 + 1;
    rec.dispatch(&source, &binds, move |size| [workers, size.rows, 1])
}

/// Vectors of four must not straddle the parts of a head.
fn check_sizes(nope_dim: usize, rope_dim: usize, kv_rank: usize) -> Result<(), GpuError> {
    if [nope_dim, rope_dim, kv_rank].iter().all(|size| size.is_multiple_of(4)) && kv_rank > 0 {
        return Ok(());
    }
    let parts = format!("{nope_dim} + {rope_dim} dimensions on rows of {kv_rank}");
    Err(GpuError::Unsupported(format!("latent attention with heads of {parts} (no multiples of 4)")))
}

/// How the three kernels of an attention share the work.
#[derive(Clone, Copy)]
struct Cut {
    /// Tokens per pass over the weights.
    tokens: u32,
    /// Query heads that share the reads of keys.
    heads: usize,
    /// Ranges of keys.
    splits: usize,
    /// Rows that a step of this class has at most.
    rows: usize,
}

impl Cut {
    fn of(rec: &Recorder<'_>, op: &MlaAttentionOp) -> Result<Self, GpuError> {
        let memory = rec.gpu.caps().workgroup_memory as usize;
        let key_bytes = (op.kv_rank + op.rope_dim) * 4;
        // Scores, output shares, and little things.
        let fits = |heads: usize| heads * (key_bytes + WORKGROUP as usize * 4 + 320) + 5 * 1024 <= memory;
        let heads = [4, 2, 1].into_iter().find(|&heads| fits(heads));
        let quads = op.kv_rank / 4;
        let Some(heads) = heads.filter(|_| quads <= WORKGROUP as usize) else {
            let rows = format!("compressed rows of {} + {} dimensions", op.kv_rank, op.rope_dim);
            return Err(GpuError::Unsupported(format!("latent attention with {rows}")));
        };
        let capacity = rec.slots.rows();
        let tiles = op.heads.div_ceil(heads);
        let (tokens, splits, rows) = match rec.class {
            Class::One => (1, FULL.div_ceil(tiles).clamp(1, 32), 1),
            Class::Few => (rec.class.tokens(), FULL.div_ceil(4 * tiles).clamp(1, 8), capacity.min(FEW)),
            Class::Many => (2 * rec.class.tokens(), 1, capacity),
        };
        Ok(Self { tokens, heads, splits, rows })
    }
}

/// See [`MlaAttentionOp`]: queries into the compressed space, attention there, values out of it.
pub(crate) fn mla_attention(rec: &mut Recorder<'_>, op: &MlaAttentionOp) -> Result<(), GpuError> {
    check_sizes(op.nope_dim, op.rope_dim, op.kv_rank)?;
    let (cut, matrix) = (Cut::of(rec, op)?, rec.matrix(&[op.kv_b])?);
    if matrix.pieces.len() != 1 {
        let size = format!("{} rows of {}", matrix.rows(), matrix.cols);
        return Err(GpuError::Unsupported(format!("latent attention with {size} in more than one buffer")));
    }
    let wide = op.heads * op.kv_rank * 4;
    let index = rec.class as usize;
    let latent = rec.scratch("mla queries", index, cut.rows * wide)?;
    let mixed = rec.scratch("mla mixed", index, cut.rows * cut.splits * wide)?;
    let stats = rec.scratch("mla stats", index, cut.rows * cut.splits * op.heads * 8)?;
    absorb(rec, op, cut, &matrix, &latent)?;
    attend(rec, op, cut, [&latent, &mixed, &stats])?;
    expand(rec, op, cut, &matrix, [&mixed, &stats])
}

/// Sizes that all three kernels use.
fn with_sizes(source: Source, rec: &Recorder<'_>, op: &MlaAttentionOp, cut: Cut) -> Source {
    source
        .with("HEADS", op.heads)
        .with("NOPE_DIM", op.nope_dim)
        .with("ROPE_DIM", op.rope_dim)
        .with("VALUE_DIM", op.value_dim)
        .with("KV_RANK", op.kv_rank)
        .with("Q_HEAD", op.nope_dim + op.rope_dim)
        .with("KV_HEAD", op.nope_dim + op.value_dim)
        .with("Q_STRIDE", rec.activation(op.q).stride)
        .with("OUT_STRIDE", rec.activation(op.out).stride)
        .with("TOKENS", cut.tokens)
        .with("SPLITS", cut.splits)
}

/// Single rows of `kv_b`, their overlay included.
fn with_rows_of(source: Source, matrix: &DeviceMatrix) -> Source {
    let overlay = if matrix.layout.has_overlay() { wgsl!("lib/overlay4.wgsl") } else { wgsl!("lib/no_overlay4.wgsl") };
    let source = source.part(wgsl!("lib/half.wgsl")).part(wgsl!("lib/one_part.wgsl"));
    matrix.layout.with_weights(source, matrix.cols).part(overlay)
}

fn weight_binds(matrix: &Arc<DeviceMatrix>) -> impl Iterator<Item = Bind<'_>> {
    let fields = matrix.fields.as_ref().map(|fields| Bind::read(9, fields));
    matrix.pieces.iter().flat_map(|piece| piece.binds()).chain(fields)
}

/// `latent = q_nope W_k` per head.
fn absorb(
    rec: &mut Recorder<'_>,
    op: &MlaAttentionOp,
    cut: Cut,
    matrix: &Arc<DeviceMatrix>,
    latent: &wgpu::Buffer,
) -> Result<(), GpuError> {
    let q = rec.activation(op.q);
    let source = source(rec, "mla_absorb", wgsl!("mla_absorb.wgsl"), WORKGROUP).with("LANES", LANES);
    let source = with_rows_of(with_sizes(source, rec, op, cut), matrix);
    let mut binds = vec![Bind::read(1, &q.buffer), Bind::write(2, latent)];
    binds.extend(weight_binds(matrix));
    let groups = (op.heads * (op.kv_rank / 4).div_ceil(LANES)) as u32;
    rec.dispatch(&source, &binds, move |size| fold(size.rows.div_ceil(cut.tokens), groups))
}

/// Sums of compressed rows per head and range of keys.
fn attend(
    rec: &mut Recorder<'_>,
    op: &MlaAttentionOp,
    cut: Cut,
    [latent, mixed, stats]: [&wgpu::Buffer; 3],
) -> Result<(), GpuError> {
    let (q, kv) = (rec.activation(op.q), rec.state.kv());
    let (group, keys, _) = rec.state.cache(op.state)?;
    let source = source(rec, "mla_attention", wgsl!("mla_attention.wgsl"), WORKGROUP)
        .with("CACHE_GROUP", group)
        .with("TILE_HEADS", cut.heads)
        .with("Q_STRIDE4", q.stride / 4)
        .with("SCALE", op.scale);
    let source = with_cache_reads(with_sizes(source, rec, op, cut), kv);
    let binds = [
        Bind::read(1, &q.buffer),
        Bind::read(2, latent),
        Bind::write(3, mixed),
        Bind::read(4, keys),
        Bind::write(6, stats),
    ];
    let (tiles, splits) = (op.heads.div_ceil(cut.heads) as u32, cut.splits as u32);
    rec.dispatch(&source, &binds, move |size| [tiles, size.rows, splits])
}

/// `out = W_v mixed` per head.
fn expand(
    rec: &mut Recorder<'_>,
    op: &MlaAttentionOp,
    cut: Cut,
    matrix: &Arc<DeviceMatrix>,
    [mixed, stats]: [&wgpu::Buffer; 2],
) -> Result<(), GpuError> {
    let out = rec.activation(op.out);
    let mask = op.head_mask.map(|mask| rec.vector(mask)).transpose()?;
    let source = source(rec, "mla_expand", wgsl!("mla_expand.wgsl"), WORKGROUP)
        .with("TILE", TILE)
        .part(if mask.is_some() { wgsl!("lib/mask.wgsl") } else { wgsl!("lib/no_mask.wgsl") });
    let source = with_rows_of(with_sizes(source, rec, op, cut), matrix);
    let mut binds = vec![Bind::read(1, mixed), Bind::read(2, stats), Bind::write(4, &out.buffer)];
    binds.extend(mask.as_ref().map(|mask| Bind::read(3, mask)));
    binds.extend(weight_binds(matrix));
    let groups = (op.heads * op.value_dim.div_ceil(TILE)) as u32;
    rec.dispatch(&source, &binds, move |size| fold(size.rows.div_ceil(cut.tokens), groups))
}
