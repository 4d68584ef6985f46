//! Softmax attention.

use cortiq_model::{AttentionOp, Batch, HostState, ModelError, Row};

use super::{Slots, dot, is_off, row_of, row_of_mut, sigmoid};
use crate::Model;

/// One query head at a time.
pub(crate) fn attention(
    model: &Model,
    slots: &mut Slots,
    state: &HostState,
    batch: &Batch<'_>,
    op: &AttentionOp,
) -> Result<(), ModelError> {
    let width = op.heads * op.head_dim;
    let mask = op.head_mask.map(|id| model.vector(id));
    let mut out = std::mem::take(&mut slots[op.out.0]);
    for row in batch.rows() {
        let queries = row_of(&slots[op.q.0], width, row.index).chunks_exact(op.head_dim);
        let outputs = row_of_mut(&mut out, width, row.index).chunks_exact_mut(op.head_dim);
        for (head, (q, y)) in queries.zip(outputs).enumerate() {
            if is_off(mask, head) {
                y.fill(0.0);
            } else {
                attend(state, op, row, head, q, y)?;
            }
        }
        if let Some(gate) = op.gate {
            let y = row_of_mut(&mut out, width, row.index);
            for (y, g) in y.iter_mut().zip(row_of(&slots[gate.0], width, row.index)) {
                *y = (f64::from(*y) * sigmoid(f64::from(*g))) as f32;
            }
        }
    }
    slots[op.out.0] = out;
    Ok(())
}

/// `y = softmax(cap(scale * q·K)) V` of one head over the visible positions.
fn attend(
    state: &HostState,
    op: &AttentionOp,
    row: Row,
    head: usize,
    q: &[f32],
    y: &mut [f32],
) -> Result<(), ModelError> {
    let from = op.window.map_or(0, |window| (row.position + 1).saturating_sub(window));
    let kv_head = head / (op.heads / op.kv_heads);
    let (mut scores, mut values) = (Vec::new(), Vec::new());
    let blocks = state.blocks(row.sequence, op.state.0, from, row.position + 1)?;
    let blocks: Vec<_> =
        blocks.map(|block| (block.start, block.keys(kv_head).to_f32(), block.values(kv_head).to_f32())).collect();
    for (start, keys, block_values) in &blocks {
        let rows = keys.chunks_exact(op.head_dim).zip(block_values.chunks_exact(op.head_dim));
        for (k, v) in rows.skip(from.saturating_sub(*start)) {
            let score = dot(q, k) * f64::from(op.scale);
            scores.push(op.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()));
            values.push(v);
        }
    }
    softmax_sum(&scores, &values, y);
    Ok(())
}

/// `y = Σ softmax(scores)[j] * values[j]`.
pub(super) fn softmax_sum(scores: &[f64], values: &[&[f32]], y: &mut [f32]) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (i, y) in y.iter_mut().enumerate() {
        let sum: f64 = weights.iter().zip(values).map(|(w, v)| w * f64::from(v[i])).sum();
        *y = (sum / total) as f32;
    }
}
