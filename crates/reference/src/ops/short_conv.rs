//! Short gated convolution.

use cortiq_model::{Batch, HostState, ModelError, ShortConvOp};

use super::gated_delta::convolve;
use super::{Slots, row_of, row_of_mut};
use crate::Model;

/// See [`ShortConvOp`].
pub(crate) fn short_conv(
    model: &Model,
    slots: &mut Slots,
    state: &mut HostState,
    batch: &Batch<'_>,
    op: &ShortConvOp,
) -> Result<(), ModelError> {
    let width = model.width(op.out);
    let mut out = std::mem::take(&mut slots[op.out.0]);
    for row in batch.rows() {
        let input = row_of(&slots[op.input.0], 3 * width, row.index);
        let (b, rest) = input.split_at(width);
        let (c, x) = rest.split_at(width);
        let gated: Vec<f32> = b.iter().zip(x).map(|(b, x)| b * x).collect();
        let ring = state.recurrent_mut(row.sequence, op.state.0)?;
        let mixed = convolve(ring, &gated, model.vector(op.taps));
        for ((y, c), m) in row_of_mut(&mut out, width, row.index).iter_mut().zip(c).zip(mixed) {
            *y = (f64::from(*c) * m) as f32;
        }
    }
    slots[op.out.0] = out;
    Ok(())
}
