//! Gated delta net, token by token.

use cortiq_model::{Batch, GatedDeltaOp, HostState, ModelError};

use super::{Slots, dot, rms_norm, row_of, row_of_mut, sigmoid};
use crate::Model;

/// See [`GatedDeltaOp`].
pub(crate) fn gated_delta(
    model: &Model,
    slots: &mut Slots,
    state: &mut HostState,
    batch: &Batch<'_>,
    op: &GatedDeltaOp,
) -> Result<(), ModelError> {
    let (channels, values) = (op.channels(), op.value_heads * op.value_dim);
    let mut out = std::mem::take(&mut slots[op.out.0]);
    for row in batch.rows() {
        let (ring, matrix) = state.recurrent_mut(row.sequence, op.state.0)?.split_at_mut(op.ring_floats());
        let mixed = convolve(ring, row_of(&slots[op.qkv.0], channels, row.index), model.vector(op.conv));
        let mixed: Vec<f32> = mixed.into_iter().map(|x| (x * sigmoid(x)) as f32).collect();
        let (q, rest) = mixed.split_at(op.key_heads * op.key_dim);
        let (k, v) = rest.split_at(op.key_heads * op.key_dim);
        let y = row_of_mut(&mut out, values, row.index);
        for head in 0..op.value_heads {
            let key_head = head / (op.value_heads / op.key_heads);
            let at = key_head * op.key_dim..(key_head + 1) * op.key_dim;
            let scalar = |slot: &[f32]| f64::from(row_of(slot, op.value_heads, row.index)[head]);
            let decay_rate = f64::from(model.vector(op.a_log)[head]).exp();
            let step = softplus(scalar(&slots[op.a.0]) + f64::from(model.vector(op.dt_bias)[head]));
            let value = head * op.value_dim..(head + 1) * op.value_dim;
            delta_rule(DeltaStep {
                matrix: &mut matrix[head * op.key_dim * op.value_dim..(head + 1) * op.key_dim * op.value_dim],
                q: &unit(&q[at.clone()], (op.key_dim as f64).sqrt()),
                k: &unit(&k[at], 1.0),
                v: &v[value.clone()],
                decay: (-decay_rate * step).exp(),
                beta: sigmoid(scalar(&slots[op.b.0])),
                out: &mut y[value.clone()],
            });
            let gate = &row_of(&slots[op.z.0], values, row.index)[value.clone()];
            rms_norm(&mut y[value.clone()], model.vector(op.norm), op.eps);
            for (y, z) in y[value].iter_mut().zip(gate) {
                let z = f64::from(*z);
                *y = (f64::from(*y) * z * sigmoid(z)) as f32;
            }
        }
    }
    slots[op.out.0] = out;
    Ok(())
}

/// Depthwise causal convolution of the new row with the remembered ones (oldest first), which move on by one.
pub(super) fn convolve(ring: &mut [f32], row: &[f32], taps: &[f32]) -> Vec<f64> {
    let channels = row.len();
    let kernel = taps.len() / channels;
    let out = (0..channels)
        .map(|c| {
            let taps = &taps[c * kernel..(c + 1) * kernel];
            let past = ring.chunks_exact(channels).map(|old| old[c]);
            past.chain([row[c]]).zip(taps).map(|(x, t)| f64::from(x) * f64::from(*t)).sum()
        })
        .collect();
    if !ring.is_empty() {
        ring.copy_within(channels.., 0);
        let newest = ring.len() - channels;
        ring[newest..].copy_from_slice(row);
    }
    out
}

/// `x / sqrt(|x|² + 1e-6) / divisor`.
fn unit(x: &[f32], divisor: f64) -> Vec<f32> {
    let norm = (dot(x, x) + 1e-6).sqrt() * divisor;
    x.iter().map(|x| (f64::from(*x) / norm) as f32).collect()
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// One step of one head: `S` is `[key_dim, value_dim]`.
struct DeltaStep<'a> {
    matrix: &'a mut [f32],
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f64,
    beta: f64,
    out: &'a mut [f32],
}

/// `S *= decay; d = beta * (v - Sᵀk); S += k dᵀ; out = Sᵀq`.
fn delta_rule(step: DeltaStep<'_>) {
    let width = step.v.len();
    step.matrix.iter_mut().for_each(|s| *s = (f64::from(*s) * step.decay) as f32);
    for j in 0..width {
        let column = |matrix: &[f32], x: &[f32]| -> f64 {
            x.iter().enumerate().map(|(i, x)| f64::from(matrix[i * width + j]) * f64::from(*x)).sum()
        };
        let d = step.beta * (f64::from(step.v[j]) - column(step.matrix, step.k));
        for (i, k) in step.k.iter().enumerate() {
            let s = &mut step.matrix[i * width + j];
            *s = (f64::from(*s) + f64::from(*k) * d) as f32;
        }
        step.out[j] = column(step.matrix, step.q) as f32;
    }
}
