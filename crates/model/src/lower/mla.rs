//! Multi-head latent attention.

use super::Builder;
use crate::{KvLayer, MlaAttentionOp, MlaSpec, MlaStoreOp, ModelError, Op, Slot, StateDecl, VectorId};

/// `out = attention(input)`, both `[hidden_size]`; `head_mask` is `[heads]`, 0 for heads that are off.
pub(super) fn lower(
    b: &mut Builder<'_>,
    spec: &MlaSpec,
    head_mask: Option<VectorId>,
    input: Slot,
    out: Slot,
) -> Result<(), ModelError> {
    let hidden_size = b.program.hidden_size;
    let &MlaSpec { heads, nope_dim, rope_dim, value_dim, kv_rank, scale, .. } = spec;
    let q = b.slot("q", heads * (nope_dim + rope_dim));
    let kv = b.slot("latent", kv_rank + rope_dim);
    let mixed = b.slot("attention", heads * value_dim);
    let projection = |name: &str| format!("{}.{name}", spec.prefix);

    let latent = b.linear(&projection("kv_a_proj_with_mqa"), hidden_size, kv)?;
    match &spec.q_rank {
        Some((rank, norm)) => {
            let compressed = b.slot("q_latent", *rank);
            let down = b.linear(&projection("q_a_proj"), hidden_size, compressed)?;
            b.push(Op::Linear { input, parts: vec![down, latent] });
            let normed = b.slot("q_latent_normed", *rank);
            b.norm(norm, compressed, normed)?;
            let up = b.linear(&projection("q_b_proj"), *rank, q)?;
            b.push(Op::Linear { input: normed, parts: vec![up] });
        }
        None => {
            let direct = b.linear(&projection("q_proj"), hidden_size, q)?;
            b.push(Op::Linear { input, parts: vec![direct, latent] });
        }
    }

    let layer = KvLayer { kv_heads: 1, key_dim: kv_rank + rope_dim, value_dim: 0, window: None };
    let state = b.state(StateDecl::Kv(layer));
    let rope = b.rope(&spec.rope)?;
    let kv_norm = b.vector(&spec.kv_norm.weight, kv_rank, spec.kv_norm.offset)?;
    let eps = spec.kv_norm.eps;
    b.push(Op::MlaStore(MlaStoreOp { q, kv, kv_norm, eps, rope, state, heads, nope_dim, rope_dim, kv_rank }));
    let kv_b = b.matrix(&projection("kv_b_proj.weight"), heads * (nope_dim + value_dim), kv_rank)?;
    b.push(Op::MlaAttention(MlaAttentionOp {
        q,
        kv_b,
        out: mixed,
        state,
        heads,
        nope_dim,
        rope_dim,
        value_dim,
        kv_rank,
        scale,
        head_mask,
    }));
    let o_proj = b.linear(&projection("o_proj"), heads * value_dim, out)?;
    b.push(Op::Linear { input: mixed, parts: vec![o_proj] });
    Ok(())
}
