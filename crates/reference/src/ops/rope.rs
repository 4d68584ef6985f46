//! Norm and rotation of queries and keys, store of keys and values.

use cortiq_model::{Batch, HostState, ModelError, NormSpan, Pairing, QkNormRopeStoreOp, RopeTable, Row};

use super::{Slots, rms_norm, rms_norm_plain, row_of, row_of_mut};
use crate::Model;

/// Rotation of one row: cosines and sines of its position.
pub(super) struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairing: Pairing,
}

impl Rotation {
    pub(super) fn new(table: &RopeTable, row: Row) -> Self {
        let (mut cos, mut sin) = (vec![0.0; table.pairs()], vec![0.0; table.pairs()]);
        table.fill(row.position, row.known_len, &mut cos, &mut sin);
        Self { cos, sin, pairing: table.pairing }
    }

    /// Rotates the leading dimensions of a head; the pair `i` goes to `(i, i + pairs)`.
    pub(super) fn apply(&self, x: &mut [f32]) {
        let pairs = self.cos.len();
        let source: Vec<f32> = x[..2 * pairs].to_vec();
        for i in 0..pairs {
            let (a, b) = match self.pairing {
                Pairing::Halves => (source[i], source[i + pairs]),
                Pairing::Interleaved => (source[2 * i], source[2 * i + 1]),
            };
            x[i] = a * self.cos[i] - b * self.sin[i];
            x[i + pairs] = b * self.cos[i] + a * self.sin[i];
        }
    }
}

/// See [`QkNormRopeStoreOp`].
pub(crate) fn qk_norm_rope_store(
    model: &Model,
    slots: &mut Slots,
    state: &mut HostState,
    batch: &Batch<'_>,
    op: &QkNormRopeStoreOp,
) -> Result<(), ModelError> {
    let (q_width, kv_width) = (op.heads * op.head_dim, op.kv_heads * op.head_dim);
    for row in batch.rows() {
        let rotation = op.rope.map(|id| Rotation::new(&model.program.ropes[id.0], row));
        let norms = op.qk_norm.map(|norm| (model.vector(norm.q), model.vector(norm.k)));
        for (slot, width, weight) in [(op.q, q_width, norms.map(|(q, _)| q)), (op.k, kv_width, norms.map(|(_, k)| k))] {
            let x = row_of_mut(&mut slots[slot.0], width, row.index);
            if let (Some(norm), Some(weight)) = (op.qk_norm, weight) {
                let span = match norm.span {
                    NormSpan::Head => op.head_dim,
                    NormSpan::AllHeads => width,
                };
                x.chunks_exact_mut(span).for_each(|part| rms_norm(part, weight, norm.eps));
            }
            if let Some(rotation) = &rotation {
                x.chunks_exact_mut(op.head_dim).for_each(|head| rotation.apply(head));
            }
        }
        if let Some(eps) = op.value_norm {
            let values = row_of_mut(&mut slots[op.v.0], kv_width, row.index);
            values.chunks_exact_mut(op.head_dim).for_each(|head| rms_norm_plain(head, eps));
        }
        let keys = row_of(&slots[op.k.0], kv_width, row.index);
        let values = row_of(&slots[op.v.0], kv_width, row.index);
        state.write(row.sequence, op.state.0, row.position, keys, values)?;
    }
    Ok(())
}
