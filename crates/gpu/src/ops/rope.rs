//! Norm and rotation of queries and keys, store of keys and values.

use cortiq_model::{KvDtype, NormSpan, Pairing, QkNorm, QkNormRopeStoreOp, RopeId, VectorId};

use super::source;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP};
use crate::plan::{Activation, Recorder};
use crate::shader::{Source, wgsl};

/// Threads of a workgroup, which works on one head.
const THREADS: u32 = 64;

/// Snippets of the cache's storage type. Keys are binding 4, values binding 5, both written.
pub(super) fn with_cache_writes(source: Source, kv: KvDtype) -> Source {
    source.part(match kv {
        KvDtype::F16 => wgsl!("lib/cache_f16.wgsl"),
        _ => wgsl!("lib/cache_f32.wgsl"),
    })
}

/// Adds the rotation: constants of a rope, or none.
pub(super) fn with_rope(source: Source, rec: &Recorder<'_>, rope: Option<RopeId>) -> Source {
    let table = rope.map(|id| &rec.program.ropes[id.0]);
    source
        .with("ROPE", rope.map_or(0, |id| rec.program.ropes[..id.0].iter().map(|rope| rope.pairs()).sum()))
        .with("PAIRS", table.map_or(0, |table| table.pairs()))
        .with("INTERLEAVED", table.is_some_and(|table| table.pairing == Pairing::Interleaved))
}

/// See [`QkNormRopeStoreOp`].
pub(crate) fn qk_norm_rope_store(rec: &mut Recorder<'_>, op: &QkNormRopeStoreOp) -> Result<(), GpuError> {
    let (q, k, v) = (rec.activation(op.q), rec.activation(op.k), rec.activation(op.v));
    if !op.head_dim.is_multiple_of(4) {
        return Err(GpuError::Unsupported(format!("heads of {} dimensions (no multiple of 4)", op.head_dim)));
    }
    let norms = norm_weights(rec, op, &q, &k)?;
    let kv = rec.state.kv();
    let (group, keys, values) = rec.state.cache(op.state)?;
    let source = source(rec, "qk_norm_rope_store", wgsl!("qk_norm_rope_store.wgsl"), THREADS)
        .part(wgsl!("lib/rotated.wgsl"))
        .with("HEADS", op.heads)
        .with("KV_HEADS", op.kv_heads)
        .with("HEAD_DIM", op.head_dim)
        .with("CACHE_GROUP", group)
        .with("Q_STRIDE", q.stride)
        .with("KV_STRIDE", k.stride)
        .with("EPS", op.qk_norm.map_or(0.0, |norm| norm.eps) as f32)
        .with("VALUE_NORM", op.value_norm.is_some())
        .with("VALUE_EPS", op.value_norm.unwrap_or(0.0) as f32)
        .part(if norms.is_some() { wgsl!("lib/qk_norm.wgsl") } else { wgsl!("lib/no_qk_norm.wgsl") });
    let source = with_cache_writes(with_rope(source, rec, op.rope), kv);
    let mut binds = vec![
        Bind::write(1, &q.buffer),
        Bind::read(2, &k.buffer),
        Bind::read(3, &v.buffer),
        Bind::write(4, keys),
        Bind::write(5, values),
    ];
    if let Some((q_norm, k_norm)) = &norms {
        binds.extend([Bind::read(7, q_norm), Bind::read(10, k_norm)]);
    }
    let heads = (op.heads + 2 * op.kv_heads) as u32;
    rec.dispatch(&source, &binds, move |size| [heads, size.rows, 1])
}

/// Weights for norms of single heads. Norms over all heads are done here, before the heads part.
fn norm_weights(
    rec: &mut Recorder<'_>,
    op: &QkNormRopeStoreOp,
    q: &Activation,
    k: &Activation,
) -> Result<Option<(wgpu::Buffer, wgpu::Buffer)>, GpuError> {
    match op.qk_norm {
        None => Ok(None),
        Some(norm) if norm.span == NormSpan::Head => Ok(Some((rec.vector(norm.q)?, rec.vector(norm.k)?))),
        Some(QkNorm { q: q_weight, k: k_weight, eps, .. }) => {
            norm_in_place(rec, q, q_weight, eps)?;
            norm_in_place(rec, k, k_weight, eps)?;
            Ok(None)
        }
    }
}

/// RMS norm of whole rows where they stand.
fn norm_in_place(rec: &mut Recorder<'_>, x: &Activation, weight: VectorId, eps: f64) -> Result<(), GpuError> {
    let weight = rec.vector(weight)?;
    let source = source(rec, "norm_in_place", wgsl!("norm_in_place.wgsl"), WORKGROUP)
        .with("WIDTH", x.width)
        .with("STRIDE", x.stride)
        .with("EPS", eps as f32);
    rec.dispatch(&source, &[Bind::write(1, &x.buffer), Bind::read(2, &weight)], |size| [1, size.rows, 1])
}
