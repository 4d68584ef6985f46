//! Embedding rows, norms and sums: few bytes, so one thread does them.

use cortiq_model::{MatrixId, Slot, VectorId};

use crate::executor::{Model, Run};

/// `out[t] = table[token[t]] * scale`.
pub(crate) fn embed(model: &Model, run: &mut Run, tokens: &[u32], table: MatrixId, scale: f32, out: Slot) {
    let view = model.matrix(table);
    for (row, &token) in run.slots[out.0].chunks_exact_mut(model.width(out)).zip(tokens) {
        view.decode_row(token as usize, row);
        if scale != 1.0 {
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * weight`, in place; the mean square is an f64 sum.
pub(crate) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f64) {
    let mut sums = [0.0f64; 4];
    let chunks = x.chunks_exact(4);
    let rest: f64 = chunks.remainder().iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    for chunk in chunks {
        for (s, v) in sums.iter_mut().zip(chunk) {
            *s += f64::from(*v) * f64::from(*v);
        }
    }
    let mean = (sums.iter().sum::<f64>() + rest) / x.len() as f64;
    let inverse = (1.0 / (mean + eps).sqrt()) as f32;
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * inverse * w;
    }
}

/// RMS norm of every row.
pub(crate) fn norm(model: &Model, run: &mut Run, input: Slot, weight: VectorId, eps: f64, out: Slot) {
    let mut rows = std::mem::take(&mut run.slots[out.0]);
    rows.copy_from_slice(&run.slots[input.0]);
    for row in rows.chunks_exact_mut(model.width(out)) {
        rms_norm(row, &model.program.vectors[weight.0], eps);
    }
    run.slots[out.0] = rows;
}

/// `into += add`.
pub(crate) fn residual(run: &mut Run, add: Slot, into: Slot) {
    let mut sum = std::mem::take(&mut run.slots[into.0]);
    for (x, y) in sum.iter_mut().zip(&run.slots[add.0]) {
        *x += y;
    }
    run.slots[into.0] = sum;
}
