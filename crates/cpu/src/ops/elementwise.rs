//! Embedding rows, norms and sums: few bytes, so one thread does them.

use cortiq_model::{Activation, MatrixId, Slot, VectorId};

use crate::executor::{Model, Run};
use crate::kernels::Isa;

/// `out[t] = table[token[t]] * scale`.
pub(crate) fn embed(model: &Model, run: &mut Run, tokens: &[u32], table: MatrixId, factor: f32, out: Slot) {
    let view = model.matrix(table);
    for (row, &token) in run.slots[out.0].chunks_exact_mut(model.width(out)).zip(tokens) {
        view.decode_row(token as usize, row);
    }
    if factor != 1.0 {
        scale(run, out, factor);
    }
}

/// `slot *= factor`.
pub(crate) fn scale(run: &mut Run, slot: Slot, factor: f32) {
    run.slots[slot.0].iter_mut().for_each(|x| *x *= factor);
}

/// `x / sqrt(mean(x²) + eps) * weight`, in place; the mean square is an f64 sum.
pub(crate) fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f64) {
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
    match weight {
        Some(weight) => x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * inverse * w),
        None => x.iter_mut().for_each(|x| *x *= inverse),
    }
}

/// RMS norm of every row.
pub(crate) fn norm(model: &Model, run: &mut Run, input: Slot, weight: VectorId, eps: f64, out: Slot) {
    let mut rows = std::mem::take(&mut run.slots[out.0]);
    rows.copy_from_slice(&run.slots[input.0]);
    for row in rows.chunks_exact_mut(model.width(out)) {
        rms_norm(row, Some(&model.program.vectors[weight.0]), eps);
    }
    run.slots[out.0] = rows;
}

/// `gate = act(gate) * up`.
pub(crate) fn activate(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => isa.silu(gate),
        Activation::GeluTanh => gate.iter_mut().for_each(|g| *g = activation.apply(*g)),
    }
    gate.iter_mut().zip(up).for_each(|(g, u)| *g *= u);
}

/// `into += add`.
pub(crate) fn residual(run: &mut Run, add: Slot, into: Slot) {
    let mut sum = std::mem::take(&mut run.slots[into.0]);
    for (x, y) in sum.iter_mut().zip(&run.slots[add.0]) {
        *x += y;
    }
    run.slots[into.0] = sum;
}

/// `out = [first | second]`.
pub(crate) fn concat(model: &Model, run: &mut Run, first: Slot, second: Slot, out: Slot) {
    let (left, right) = (model.width(first), model.width(second));
    let mut joined = std::mem::take(&mut run.slots[out.0]);
    let parts = run.slots[first.0].chunks_exact(left).zip(run.slots[second.0].chunks_exact(right));
    for (row, (a, b)) in joined.chunks_exact_mut(left + right).zip(parts) {
        row[..left].copy_from_slice(a);
        row[left..].copy_from_slice(b);
    }
    run.slots[out.0] = joined;
}
