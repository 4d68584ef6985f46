//! The operations. Slots are `[tokens, width]`, row-major; formulas: docs/behaviour.md.

use cortiq_model::{
    AttentionOp, Batch, GatedFfnOp, HeadOp, LinearPart, MatrixId, ModelError, PagedKv, QkNormRopeStoreOp, Slot,
};

use crate::Model;

type Slots = [Vec<f32>];

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// `x / sqrt(mean(x²) + eps) * weight`, in place; mean square in f64, its inverse root rounded to f32.
fn rms_norm(x: &mut [f32], weight: &[f32], eps: f64) {
    let inverse = (1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt()) as f32;
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * inverse * w;
    }
}

/// Rotates the pairs `(x[i], x[i + cos.len()])`.
fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = x.split_at_mut(cos.len());
    for (i, (a, b)) in first.iter_mut().zip(rest).enumerate() {
        (*a, *b) = (*a * cos[i] - *b * sin[i], *b * cos[i] + *a * sin[i]);
    }
}

/// `out[t] = table[token[t]] * scale`.
pub(crate) fn embed(
    model: &Model,
    slots: &mut Slots,
    tokens: &[u32],
    table: MatrixId,
    scale: f32,
    out: Slot,
) -> Result<(), ModelError> {
    let view = model.matrix(table)?;
    for (row, &token) in slots[out.0].chunks_exact_mut(model.width(out)).zip(tokens) {
        view.decode_row(token as usize, row);
        row.iter_mut().for_each(|x| *x *= scale);
    }
    Ok(())
}

/// RMS norm of every row.
pub(crate) fn norm(model: &Model, slots: &mut Slots, input: Slot, weight: &[f32], eps: f64, out: Slot) {
    slots[out.0] = slots[input.0].clone();
    for row in slots[out.0].chunks_exact_mut(model.width(out)) {
        rms_norm(row, weight, eps);
    }
}

/// `out[t, r] = input[t] · weight[r] + bias[r]`; each weight row is dequantised once.
pub(crate) fn linear(model: &Model, slots: &mut Slots, input: Slot, part: &LinearPart) -> Result<(), ModelError> {
    let mut out = std::mem::take(&mut slots[part.out.0]);
    let bias = part.bias.map(|id| model.program.vectors[id.0].as_slice());
    let result = matmul(model, &slots[input.0], part.weight, bias, &mut out);
    slots[part.out.0] = out;
    result
}

fn matmul(model: &Model, x: &[f32], weight: MatrixId, bias: Option<&[f32]>, out: &mut [f32]) -> Result<(), ModelError> {
    let view = model.matrix(weight)?;
    let (rows, cols) = (view.rows(), view.cols());
    let mut weights = vec![0.0; cols];
    for row in 0..rows {
        view.decode_row(row, &mut weights);
        let bias = bias.map_or(0.0, |b| f64::from(b[row]));
        for (x, y) in x.chunks_exact(cols).zip(out.chunks_exact_mut(rows)) {
            y[row] = (dot(x, &weights) + bias) as f32;
        }
    }
    Ok(())
}

/// Norms and rotates queries and keys, stores keys and values.
pub(crate) fn qk_norm_rope_store(
    model: &Model,
    slots: &mut Slots,
    state: &mut PagedKv,
    batch: &Batch<'_>,
    op: &QkNormRopeStoreOp,
) -> Result<(), ModelError> {
    let rope = &model.program.ropes[op.rope.0];
    let (mut cos, mut sin) = (vec![0.0; rope.inv_freq.len()], vec![0.0; rope.inv_freq.len()]);
    let norms = op.qk_norm.map(|(q, k)| (&model.program.vectors[q.0], &model.program.vectors[k.0]));
    for (row, sequence, position) in batch.rows() {
        rope.fill(position, &mut cos, &mut sin);
        for (slot, heads, norm) in [(op.q, op.heads, norms.map(|n| n.0)), (op.k, op.kv_heads, norms.map(|n| n.1))] {
            let width = heads * op.head_dim;
            for head in slots[slot.0][row * width..(row + 1) * width].chunks_exact_mut(op.head_dim) {
                if let Some(weight) = norm {
                    rms_norm(head, weight, op.eps);
                }
                rotate(head, &cos, &sin);
            }
        }
        let kv = row * op.kv_heads * op.head_dim..(row + 1) * op.kv_heads * op.head_dim;
        state.write(sequence, op.state.0, position, &slots[op.k.0][kv.clone()], &slots[op.v.0][kv])?;
    }
    Ok(())
}

/// Softmax attention, one query head at a time.
pub(crate) fn attention(
    slots: &mut Slots,
    state: &PagedKv,
    batch: &Batch<'_>,
    op: &AttentionOp,
) -> Result<(), ModelError> {
    let width = op.heads * op.head_dim;
    let mut out = std::mem::take(&mut slots[op.out.0]);
    for (row, sequence, position) in batch.rows() {
        let from = op.window.map_or(0, |window| (position + 1).saturating_sub(window));
        for head in 0..op.heads {
            let at = row * width + head * op.head_dim;
            let (q, y) = (&slots[op.q.0][at..at + op.head_dim], &mut out[at..at + op.head_dim]);
            let kv_head = head / (op.heads / op.kv_heads);
            let mut scores = Vec::with_capacity(position + 1 - from);
            let mut values = Vec::with_capacity(position + 1 - from);
            for block in state.blocks(sequence, op.state.0, from, position + 1)? {
                let rows =
                    block.keys(kv_head).chunks_exact(op.head_dim).zip(block.values(kv_head).chunks_exact(op.head_dim));
                for (k, v) in rows.skip(from.saturating_sub(block.start)) {
                    scores.push(dot(q, k) * f64::from(op.scale));
                    values.push(v);
                }
            }
            softmax_sum(&scores, &values, y);
        }
    }
    slots[op.out.0] = out;
    Ok(())
}

/// `y = Σ softmax(scores)[j] * values[j]`.
fn softmax_sum(scores: &[f64], values: &[&[f32]], y: &mut [f32]) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (i, y) in y.iter_mut().enumerate() {
        let sum: f64 = weights.iter().zip(values).map(|(w, v)| w * f64::from(v[i])).sum();
        *y = (sum / total) as f32;
    }
}

/// `down(act(gate x) * up x)`.
pub(crate) fn gated_ffn(model: &Model, slots: &mut Slots, op: &GatedFfnOp) -> Result<(), ModelError> {
    linear(model, slots, op.input, &op.gate)?;
    linear(model, slots, op.input, &op.up)?;
    let up = std::mem::take(&mut slots[op.up.out.0]);
    for (gate, up) in slots[op.gate.out.0].iter_mut().zip(&up) {
        *gate = op.activation.apply(*gate) * up;
    }
    slots[op.up.out.0] = up;
    linear(model, slots, op.gate.out, &op.down)
}

/// `into += add`.
pub(crate) fn residual(slots: &mut Slots, add: Slot, into: Slot) {
    let mut sum = std::mem::take(&mut slots[into.0]);
    for (x, y) in sum.iter_mut().zip(&slots[add.0]) {
        *x += y;
    }
    slots[into.0] = sum;
}

/// Logits of the chosen rows.
pub(crate) fn head(
    model: &Model,
    slots: &Slots,
    rows: &[usize],
    op: &HeadOp,
    logits: &mut Vec<f32>,
) -> Result<(), ModelError> {
    let width = model.width(op.input);
    let x: Vec<f32> =
        rows.iter().flat_map(|&row| &slots[op.input.0][row * width..(row + 1) * width]).copied().collect();
    logits.clear();
    logits.resize(rows.len() * model.program.vocab_size, 0.0);
    matmul(model, &x, op.weight, None, logits)?;
    if let Some(cap) = op.softcap {
        logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}
