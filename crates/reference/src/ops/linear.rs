//! Matrices times rows.

use cortiq_model::{HeadOp, LinearPart, MatrixId, ModelError, Slot};

use super::{Slots, dot};
use crate::Model;

/// `out[t, r] = input[t] · weight[r] + bias[r]`; each weight row is dequantised once.
pub(crate) fn linear(model: &Model, slots: &mut Slots, input: Slot, part: &LinearPart) -> Result<(), ModelError> {
    let mut out = std::mem::take(&mut slots[part.out.0]);
    let bias = part.bias.map(|id| model.vector(id));
    let result = matmul(model, &slots[input.0], part.weight, bias, &mut out);
    slots[part.out.0] = out;
    result
}

/// `out[t, r] = x[t] · weight[r] + bias[r]`, `x` `[n, cols]`, `out` `[n, rows]`.
pub(super) fn matmul(
    model: &Model,
    x: &[f32],
    weight: MatrixId,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<(), ModelError> {
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

/// Logits of the chosen rows.
pub(crate) fn head(
    model: &Model,
    slots: &Slots,
    rows: &[usize],
    op: &HeadOp,
    logits: &mut Vec<f32>,
) -> Result<(), ModelError> {
    let width = model.width(op.input);
    let x: Vec<f32> = rows.iter().flat_map(|&row| super::row_of(&slots[op.input.0], width, row)).copied().collect();
    logits.clear();
    logits.resize(rows.len() * model.program.vocab_size, 0.0);
    matmul(model, &x, op.weight, None, logits)?;
    if let Some(cap) = op.softcap {
        logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}
