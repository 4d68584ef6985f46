//! Decoding with a short context: rotation, store and attention in one dispatch.

use cortiq_model::{AttentionOp, NormSpan, QkNormRopeStoreOp};

use super::rope::{with_cache_writes, with_rope};
use super::source;
use crate::kernel::Bind;
use crate::plan::{Class, Recorder};
use crate::shader::wgsl;
use crate::{Caps, GpuError};

/// Threads of a workgroup: a whole short context's keys are on their way at a time.
const THREADS: u32 = 1024;

/// Longest context, the new position included, whose scores stay in workgroup memory.
pub(crate) const SHORT_CONTEXT: u32 = 512;

fn threads(rec: &Recorder<'_>) -> u32 {
    rec.gpu.caps().threads(THREADS)
}

/// Whether [`short_attention`] takes these operations for contexts of up to [`SHORT_CONTEXT`].
pub(crate) fn takes_short(rec: &Recorder<'_>, store: &QkNormRopeStoreOp, attention: &AttentionOp) -> bool {
    let per_head = store.qk_norm.is_none_or(|norm| norm.span == NormSpan::Head);
    let same = store.state == attention.state && store.q == attention.q;
    let width = attention.head_dim;
    rec.class == Class::One && per_head && same && width.is_multiple_of(4) && fits_short(rec.gpu.caps(), width)
}

/// Whether a device runs [`short_attention`] with heads of `head_dim`.
pub(crate) fn fits_short(caps: &Caps, head_dim: usize) -> bool {
    let threads = caps.threads(THREADS) as usize;
    // Scores, shares of the output, heads, angles, block starts and what teams need.
    let memory = 4 * SHORT_CONTEXT as usize + 16 * threads + 32 * head_dim + 1024;
    head_dim <= threads && memory <= caps.workgroup_memory as usize
}

/// Records both operations for steps with a short context; the caller records the others.
pub(crate) fn short_attention(
    rec: &mut Recorder<'_>,
    store: &QkNormRopeStoreOp,
    op: &AttentionOp,
) -> Result<(), GpuError> {
    let (q, k, v) = (rec.activation(store.q), rec.activation(store.k), rec.activation(store.v));
    let out = rec.activation(op.out);
    let gate = op.gate.map(|gate| rec.activation(gate));
    let mask = op.head_mask.map(|mask| rec.vector(mask)).transpose()?;
    let norms = store.qk_norm.map(|norm| Ok::<_, GpuError>((rec.vector(norm.q)?, rec.vector(norm.k)?))).transpose()?;
    let (group, keys, values) = rec.state.cache(op.state)?;
    let source = source(rec, "attention_short", wgsl!("attention_short.wgsl"), threads(rec))
        .with("HEADS", op.heads)
        .with("KV_HEADS", op.kv_heads)
        .with("HEAD_DIM", op.head_dim)
        .with("CACHE_GROUP", group)
        .with("CONTEXT", SHORT_CONTEXT)
        .with("SCALE", op.scale)
        .with("WINDOW", op.window.unwrap_or(0))
        .with("SOFTCAP", op.softcap.unwrap_or(0.0))
        .with("EPS", store.qk_norm.map_or(0.0, |norm| norm.eps) as f32)
        .with("VALUE_NORM", store.value_norm.is_some())
        .with("VALUE_EPS", store.value_norm.unwrap_or(0.0) as f32)
        .part(if norms.is_some() { wgsl!("lib/qk_norm.wgsl") } else { wgsl!("lib/no_qk_norm.wgsl") })
        .part(if gate.is_some() { wgsl!("lib/gate.wgsl") } else { wgsl!("lib/no_gate.wgsl") })
        .part(if mask.is_some() { wgsl!("lib/mask.wgsl") } else { wgsl!("lib/no_mask.wgsl") });
    let source = with_cache_writes(with_rope(source, rec, store.rope), rec.state.kv());
    let mut binds = vec![
        Bind::read(1, &q.buffer),
        Bind::write(2, &out.buffer),
        Bind::write(4, keys),
        Bind::write(5, values),
        Bind::read(8, &k.buffer),
        Bind::read(9, &v.buffer),
    ];
    binds.extend(mask.as_ref().map(|mask| Bind::read(3, mask)));
    binds.extend(gate.as_ref().map(|gate| Bind::read(6, &gate.buffer)));
    if let Some((q_norm, k_norm)) = &norms {
        binds.extend([Bind::read(7, q_norm), Bind::read(10, k_norm)]);
    }
    let heads = op.heads as u32;
    rec.dispatch(&source, &binds, move |size| if size.context <= SHORT_CONTEXT { [heads, 1, 1] } else { [0; 3] })
}
