//! Multi-head latent attention on the compressed rows.

use cortiq_model::{Batch, HostState, MlaAttentionOp, MlaStoreOp, ModelError};

use super::attention::softmax_sum;
use super::rope::Rotation;
use super::{Slots, dot, is_off, rms_norm, row_of, row_of_mut};
use crate::Model;

/// See [`MlaStoreOp`].
pub(crate) fn mla_store(
    model: &Model,
    slots: &mut Slots,
    state: &mut HostState,
    batch: &Batch<'_>,
    op: &MlaStoreOp,
) -> Result<(), ModelError> {
    let q_head = op.nope_dim + op.rope_dim;
    let width = op.kv_rank + op.rope_dim;
    for row in batch.rows() {
        let rotation = Rotation::new(&model.program.ropes[op.rope.0], row);
        for head in row_of_mut(&mut slots[op.q.0], op.heads * q_head, row.index).chunks_exact_mut(q_head) {
            rotation.apply(&mut head[op.nope_dim..]);
        }
        let latent = row_of_mut(&mut slots[op.kv.0], width, row.index);
        rms_norm(&mut latent[..op.kv_rank], model.vector(op.kv_norm), op.eps);
        rotation.apply(&mut latent[op.kv_rank..]);
        state.write(row.sequence, op.state.0, row.position, latent, &[])?;
    }
    Ok(())
}

/// See [`MlaAttentionOp`].
pub(crate) fn mla_attention(
    model: &Model,
    slots: &mut Slots,
    state: &HostState,
    batch: &Batch<'_>,
    op: &MlaAttentionOp,
) -> Result<(), ModelError> {
    let view = model.matrix(op.kv_b)?;
    let (q_head, kv_head, width) = (op.nope_dim + op.rope_dim, op.nope_dim + op.value_dim, op.kv_rank + op.rope_dim);
    let mask = op.head_mask.map(|id| model.vector(id));
    let mut weight = vec![0.0; op.kv_rank];
    let mut out = std::mem::take(&mut slots[op.out.0]);
    for row in batch.rows() {
        for head in 0..op.heads {
            let q = &row_of(&slots[op.q.0], op.heads * q_head, row.index)[head * q_head..(head + 1) * q_head];
            // The query in the space of the compressed rows, followed by its rotated part.
            let mut latent_q = vec![0.0f64; op.kv_rank];
            for (i, q) in q[..op.nope_dim].iter().enumerate() {
                view.decode_row(head * kv_head + i, &mut weight);
                latent_q.iter_mut().zip(&weight).for_each(|(l, w)| *l += f64::from(*q) * f64::from(*w));
            }
            let query: Vec<f32> = latent_q.iter().map(|l| *l as f32).chain(q[op.nope_dim..].iter().copied()).collect();
            let blocks = state.blocks(row.sequence, op.state.0, 0, row.position + 1)?;
            let blocks: Vec<_> = blocks.map(|block| block.keys(0).to_f32()).collect();
            let keys: Vec<&[f32]> = blocks.iter().flat_map(|block| block.chunks_exact(width)).collect();
            let scores: Vec<f64> = keys.iter().map(|k| dot(&query, k) * f64::from(op.scale)).collect();
            let values: Vec<&[f32]> = keys.iter().map(|k| &k[..op.kv_rank]).collect();
            let mut mixed = vec![0.0; op.kv_rank];
            softmax_sum(&scores, &values, &mut mixed);
            let y = row_of_mut(&mut out, op.heads * op.value_dim, row.index);
            let y = &mut y[head * op.value_dim..(head + 1) * op.value_dim];
            if is_off(mask, head) {
                y.fill(0.0);
                continue;
            }
            for (i, y) in y.iter_mut().enumerate() {
                view.decode_row(head * kv_head + op.nope_dim + i, &mut weight);
                *y = dot(&mixed, &weight) as f32;
            }
        }
    }
    slots[op.out.0] = out;
    Ok(())
}
