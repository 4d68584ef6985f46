//! Attention: projections, norm + rotation + store, attention, output projection.

use super::Builder;
use crate::{AttentionOp, AttentionSpec, ModelError, Op, QkNormRopeStoreOp, Slot};

/// `out = attention(input)`, both `[hidden_size]`.
pub(super) fn lower(b: &mut Builder<'_>, spec: &AttentionSpec, input: Slot, out: Slot) -> Result<(), ModelError> {
    let hidden_size = b.program.hidden_size;
    let &AttentionSpec { heads, kv_heads, head_dim, window, scale, .. } = spec;
    let q = b.slot("q", heads * head_dim);
    let k = b.slot("k", kv_heads * head_dim);
    let v = b.slot("v", kv_heads * head_dim);
    let mixed = b.slot("attention", heads * head_dim);

    let projection = |name: &str| format!("{}.{name}", spec.prefix);
    let parts = vec![
        b.linear(&projection("q_proj"), hidden_size, q)?,
        b.linear(&projection("k_proj"), hidden_size, k)?,
        b.linear(&projection("v_proj"), hidden_size, v)?,
    ];
    b.push(Op::Linear { input, parts });

    let state = b.kv_layer(kv_heads, head_dim);
    let rope = b.rope(&spec.rope)?;
    let (qk_norm, eps) = match &spec.qk_norm {
        Some((q_norm, k_norm)) => {
            let q_weight = b.vector(&q_norm.weight, head_dim, q_norm.offset)?;
            let k_weight = b.vector(&k_norm.weight, head_dim, k_norm.offset)?;
            (Some((q_weight, k_weight)), q_norm.eps)
        }
        None => (None, 0.0),
    };
    b.push(Op::QkNormRopeStore(QkNormRopeStoreOp { q, k, v, state, heads, kv_heads, head_dim, qk_norm, eps, rope }));
    b.push(Op::Attention(AttentionOp { q, out: mixed, state, heads, kv_heads, head_dim, window, scale }));
    let o_proj = b.linear(&projection("o_proj"), heads * head_dim, out)?;
    b.push(Op::Linear { input: mixed, parts: vec![o_proj] });
    Ok(())
}
