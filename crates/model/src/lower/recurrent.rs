//! Layers with a fixed-size state.

use super::Builder;
use crate::{GatedDeltaOp, GatedDeltaSpec, ModelError, Op, ShortConvOp, ShortConvSpec, Slot, StateDecl};

/// `out = gated_delta(input)`, both `[hidden_size]`.
pub(super) fn gated_delta(
    b: &mut Builder<'_>,
    spec: &GatedDeltaSpec,
    input: Slot,
    out: Slot,
) -> Result<(), ModelError> {
    let hidden_size = b.program.hidden_size;
    let &GatedDeltaSpec { key_heads, value_heads, key_dim, value_dim, conv_kernel, .. } = spec;
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    let channels = 2 * keys + values;
    let qkv = b.slot("delta_qkv", channels);
    let z = b.slot("delta_z", values);
    let (a, beta) = (b.slot("delta_a", value_heads), b.slot("delta_b", value_heads));
    let mixed = b.slot("delta_out", values);
    let name = |suffix: &str| format!("{}.{suffix}", spec.prefix);
    let parts = vec![
        b.linear(&name("in_proj_qkv"), hidden_size, qkv)?,
        b.linear(&name("in_proj_z"), hidden_size, z)?,
        b.linear(&name("in_proj_a"), hidden_size, a)?,
        b.linear(&name("in_proj_b"), hidden_size, beta)?,
    ];
    b.push(Op::Linear { input, parts });
    let floats = (conv_kernel - 1)
        .saturating_mul(channels)
        .saturating_add(value_heads.saturating_mul(key_dim).saturating_mul(value_dim));
    let op = GatedDeltaOp {
        qkv,
        z,
        a,
        b: beta,
        conv: b.vector_as(&name("conv1d.weight"), &[channels, 1, conv_kernel], 0.0)?,
        a_log: b.vector(&name("A_log"), value_heads, 0.0)?,
        dt_bias: b.vector(&name("dt_bias"), value_heads, 0.0)?,
        norm: b.vector(&spec.norm.weight, value_dim, spec.norm.offset)?,
        eps: spec.norm.eps,
        state: b.state(StateDecl::Recurrent { floats }),
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        conv_kernel,
        out: mixed,
    };
    b.push(Op::GatedDelta(op));
    let out_proj = b.linear(&name("out_proj"), values, out)?;
    b.push(Op::Linear { input: mixed, parts: vec![out_proj] });
    Ok(())
}

/// `out = short_conv(input)`, both `[hidden_size]`.
pub(super) fn short_conv(b: &mut Builder<'_>, spec: &ShortConvSpec, input: Slot, out: Slot) -> Result<(), ModelError> {
    let width = b.program.hidden_size;
    let kernel = spec.kernel;
    let (bcx, mixed) = (b.slot("conv_in", 3 * width), b.slot("conv_out", width));
    let name = |suffix: &str| format!("{}.{suffix}", spec.prefix);
    let in_proj = b.linear(&name("in_proj"), width, bcx)?;
    b.push(Op::Linear { input, parts: vec![in_proj] });
    let taps = b.vector_as(&name("conv.weight"), &[width, 1, kernel], 0.0)?;
    let state = b.state(StateDecl::Recurrent { floats: (kernel - 1) * width });
    b.push(Op::ShortConv(ShortConvOp { input: bcx, taps, kernel, state, out: mixed }));
    let out_proj = b.linear(&name("out_proj"), width, out)?;
    b.push(Op::Linear { input: mixed, parts: vec![out_proj] });
    Ok(())
}
