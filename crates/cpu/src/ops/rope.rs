//! Norm and rotation of queries and keys, store of keys and values.

use cortiq_model::{Batch, ModelError, NormSpan, Pairing, QkNormRopeStoreOp, RopeId};

use super::elementwise::rms_norm;
use crate::executor::{Model, Run};

/// Cosines and sines of a batch for one rope table.
pub(crate) struct Angles<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    pairing: Pairing,
}

impl<'a> Angles<'a> {
    /// Those that the step has prepared.
    pub(crate) fn new(model: &Model, angles: &'a [(Vec<f32>, Vec<f32>)], rope: RopeId) -> Self {
        let table = &model.program.ropes[rope.0];
        let (cos, sin) = &angles[rope.0];
        Self { cos, sin, pairs: table.pairs(), pairing: table.pairing }
    }

    /// Rotates the first dimensions of a head of row `row`; `scratch` is used for interleaved pairs.
    pub(crate) fn rotate(&self, row: usize, x: &mut [f32], scratch: &mut Vec<f32>) {
        let at = row * self.pairs..(row + 1) * self.pairs;
        let (cos, sin) = (&self.cos[at.clone()], &self.sin[at]);
        if self.pairing == Pairing::Interleaved {
            // Pairs are laid out as halves first, which is where the results go.
            scratch.clear();
            scratch.extend_from_slice(&x[..2 * self.pairs]);
            let (first, second) = x.split_at_mut(self.pairs);
            for ((a, b), pair) in first.iter_mut().zip(second).zip(scratch.chunks_exact(2)) {
                (*a, *b) = (pair[0], pair[1]);
            }
        }
        let (first, second) = x.split_at_mut(self.pairs);
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

/// See [`QkNormRopeStoreOp`].
pub(crate) fn qk_norm_rope_store(
    model: &Model,
    run: &mut Run,
    batch: &Batch<'_>,
    op: &QkNormRopeStoreOp,
) -> Result<(), ModelError> {
    let Run { slots, state, angles, pairs, .. } = run;
    let angles = op.rope.map(|rope| Angles::new(model, angles, rope));
    let norm = |id: cortiq_model::VectorId| model.program.vectors[id.0].as_slice();
    for row in batch.rows() {
        for (slot, heads, weight) in
            [(op.q, op.heads, op.qk_norm.map(|n| norm(n.q))), (op.k, op.kv_heads, op.qk_norm.map(|n| norm(n.k)))]
        {
            let width = heads * op.head_dim;
            let all = &mut slots[slot.0][row.index * width..(row.index + 1) * width];
            if let (Some(weight), Some(qk_norm)) = (weight, op.qk_norm) {
                let span = if qk_norm.span == NormSpan::AllHeads { width } else { op.head_dim };
                all.chunks_exact_mut(span).for_each(|x| rms_norm(x, Some(weight), qk_norm.eps));
            }
            if let Some(angles) = &angles {
                all.chunks_exact_mut(op.head_dim).for_each(|head| angles.rotate(row.index, head, pairs));
            }
        }
        let width = op.kv_heads * op.head_dim;
        let kv = row.index * width..(row.index + 1) * width;
        if let Some(eps) = op.value_norm {
            slots[op.v.0][kv.clone()].chunks_exact_mut(op.head_dim).for_each(|head| rms_norm(head, None, eps));
        }
        state.write(row.sequence, op.state.0, row.position, &slots[op.k.0][kv.clone()], &slots[op.v.0][kv])?;
    }
    Ok(())
}
