//! Attention: projections, norm + rotation + store, attention, output projection.

use super::Builder;
use crate::{
    AttentionOp, AttentionSpec, KvLayer, ModelError, NormSpan, Op, QkNorm, QkNormRopeStoreOp, Slot, StateDecl, VectorId,
};

/// `out = attention(input)`, both `[hidden_size]`; `head_mask` is `[heads]`, 0 for heads that are off.
pub(super) fn lower(
    b: &mut Builder<'_>,
    spec: &AttentionSpec,
    head_mask: Option<VectorId>,
    input: Slot,
    out: Slot,
) -> Result<(), ModelError> {
    let hidden_size = b.program.hidden_size;
    let &AttentionSpec { heads, kv_heads, head_dim, window, scale, softcap, .. } = spec;
    let q = b.slot("q", heads * head_dim);
    let k = b.slot("k", kv_heads * head_dim);
    let v = b.slot("v", kv_heads * head_dim);
    let mixed = b.slot("attention", heads * head_dim);
    let gated = spec.output_gate.then(|| (b.slot("q_gate", 2 * heads * head_dim), b.slot("gate_q", heads * head_dim)));

    let projection = |name: &str| format!("{}.{name}", spec.prefix);
    let parts = vec![
        b.linear(&projection("q_proj"), hidden_size, gated.map_or(q, |(both, _)| both))?,
        b.linear(&projection("k_proj"), hidden_size, k)?,
        b.linear(&projection("v_proj"), hidden_size, v)?,
    ];
    b.push(Op::Linear { input, parts });
    if let Some((both, gate)) = gated {
        b.push(Op::SplitGate { input: both, q, gate, head_dim });
    }

    let state = b.state(StateDecl::Kv(KvLayer { kv_heads, key_dim: head_dim, value_dim: head_dim, window }));
    let rope = spec.rope.as_ref().map(|rope| b.rope(rope)).transpose()?;
    let qk_norm = qk_norm(b, spec)?;
    let value_norm = spec.value_norm;
    b.push(Op::QkNormRopeStore(QkNormRopeStoreOp {
        q,
        k,
        v,
        state,
        heads,
        kv_heads,
        head_dim,
        qk_norm,
        value_norm,
        rope,
    }));
    let gate = gated.map(|(_, gate)| gate);
    b.push(Op::Attention(AttentionOp {
        q,
        gate,
        out: mixed,
        state,
        heads,
        kv_heads,
        head_dim,
        window,
        scale,
        softcap,
        head_mask,
    }));
    let o_proj = b.linear(&projection("o_proj"), heads * head_dim, out)?;
    b.push(Op::Linear { input: mixed, parts: vec![o_proj] });
    Ok(())
}

fn qk_norm(b: &mut Builder<'_>, spec: &AttentionSpec) -> Result<Option<QkNorm>, ModelError> {
    let Some(norm) = &spec.qk_norm else { return Ok(None) };
    let (q_len, k_len) = match norm.span {
        NormSpan::Head => (spec.head_dim, spec.head_dim),
        NormSpan::AllHeads => (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim),
    };
    let q = b.vector(&norm.q.weight, q_len, norm.q.offset)?;
    let k = b.vector(&norm.k.weight, k_len, norm.k.offset)?;
    Ok(Some(QkNorm { q, k, eps: norm.q.eps, span: norm.span }))
}
