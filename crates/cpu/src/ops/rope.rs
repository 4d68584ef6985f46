//! Norm and rotation of queries and keys, store of keys and values.

use cortiq_model::{Batch, ModelError, QkNormRopeStoreOp};

use super::rms_norm;
use crate::executor::{Model, Run};

/// Rotates the pairs `(x[i], x[i + cos.len()])`.
fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = x.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
    }
}

/// See [`QkNormRopeStoreOp`].
pub(crate) fn qk_norm_rope_store(
    model: &Model,
    run: &mut Run,
    batch: &Batch<'_>,
    op: &QkNormRopeStoreOp,
) -> Result<(), ModelError> {
    let (cos, sin) = &run.angles[op.rope.0];
    let pairs = model.program.ropes[op.rope.0].inv_freq.len();
    let norms = op.qk_norm.map(|(q, k)| (&model.program.vectors[q.0], &model.program.vectors[k.0]));
    for (row, sequence, position) in batch.rows() {
        let at = row * pairs..(row + 1) * pairs;
        for (slot, heads, norm) in [(op.q, op.heads, norms.map(|n| n.0)), (op.k, op.kv_heads, norms.map(|n| n.1))] {
            let width = heads * op.head_dim;
            for head in run.slots[slot.0][row * width..(row + 1) * width].chunks_exact_mut(op.head_dim) {
                if let Some(weight) = norm {
                    rms_norm(head, weight, op.eps);
                }
                rotate(head, &cos[at.clone()], &sin[at.clone()]);
            }
        }
        let width = op.kv_heads * op.head_dim;
        let kv = row * width..(row + 1) * width;
        run.state.write(sequence, op.state.0, position, &run.slots[op.k.0][kv.clone()], &run.slots[op.v.0][kv])?;
    }
    Ok(())
}
