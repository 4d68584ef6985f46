//! Gated FFN.

use cortiq_model::{GatedFfnOp, ModelError};

use super::elementwise::activate;
use super::linear;
use crate::executor::{Model, Run};
use crate::kernels::InputBits;

/// Values of the activation that a worker takes at a time.
const PART: usize = 2048;

/// See [`GatedFfnOp`]: gate and up are one dispatch, down another.
pub(crate) fn gated_ffn(model: &Model, run: &mut Run, op: &GatedFfnOp) -> Result<(), ModelError> {
    linear(model, run, op.input, &[op.gate, op.up], InputBits::Eight)?;
    let Run { slots, pool, .. } = run;
    let mut gate = std::mem::take(&mut slots[op.gate.out.0]);
    let up = &slots[op.up.out.0];
    let mask = op.neuron_mask.map(|id| model.program.vectors[id.0].as_slice());
    let done = pool.run_parts(&mut gate, PART, 1, |_, index, gate| {
        activate(model.isa, op.activation, gate, &up[index * PART..]);
        if let Some(mask) = mask {
            switch_off(mask, index * PART, gate);
        }
    });
    slots[op.gate.out.0] = gate;
    done?;
    linear(model, run, op.gate.out, &[op.down], InputBits::Eight)
}

/// Neurons that are off give 0, whatever their product is. `part` starts at `first` of `[tokens, neurons]`.
fn switch_off(mask: &[f32], first: usize, part: &mut [f32]) {
    let from = first % mask.len();
    for (x, on) in part.iter_mut().zip(mask[from..].iter().chain(mask.iter().cycle())) {
        *x = if *on == 0.0 { 0.0 } else { *x };
    }
}

#[cfg(test)]
mod tests {
    use cortiq_model::{Activation, GatedFfnOp, LinearPart, Op};

    use super::PART;
    use crate::ops::testing::{Bench, distance, wave};

    const TOKENS: usize = 5;
    const HIDDEN: usize = 3;
    /// Parts of the activation end in the middle of a token.
    const WIDTH: usize = PART / 2 - 50;

    /// `[HIDDEN]` per token, computed plainly. `mask` is by neuron.
    fn plain(mask: Option<&[f32]>) -> Vec<f32> {
        let (x, gate) = (wave(TOKENS * HIDDEN, 1.0), wave(WIDTH * HIDDEN, 2.0));
        let (up, down) = (wave(WIDTH * HIDDEN, 3.0), wave(HIDDEN * WIDTH, 4.0));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let mut out = Vec::new();
        for x in x.chunks_exact(HIDDEN) {
            let product = |n: usize| {
                let (g, u) = (dot(x, &gate[n * HIDDEN..][..HIDDEN]), dot(x, &up[n * HIDDEN..][..HIDDEN]));
                g / (1.0 + (-g).exp()) * u * mask.map_or(1.0, |mask| f64::from(mask[n]))
            };
            let products: Vec<f64> = (0..WIDTH).map(product).collect();
            out.extend(
                down.chunks_exact(WIDTH)
                    .map(|row| row.iter().zip(&products).map(|(w, p)| f64::from(*w) * p).sum::<f64>() as f32),
            );
        }
        out
    }

    #[test]
    fn neurons_that_are_off_add_nothing() {
        let mask: Vec<f32> = (0..WIDTH).map(|n| if n % 7 < 3 { 1.0 } else { 0.0 }).collect();
        for mask in [None, Some(mask)] {
            let mut bench = Bench::new(TOKENS);
            let input = bench.input(wave(TOKENS * HIDDEN, 1.0), HIDDEN);
            let mut part = |salt, rows, cols| {
                let weight = bench.matrix(wave(rows * cols, salt), rows, cols);
                LinearPart { weight, bias: None, out: bench.slot(rows) }
            };
            let (gate, up, down) = (part(2.0, WIDTH, HIDDEN), part(3.0, WIDTH, HIDDEN), part(4.0, HIDDEN, WIDTH));
            let neuron_mask = mask.clone().map(|mask| bench.vector(mask));
            let activation = Activation::Silu;
            bench.op(Op::GatedFfn(GatedFfnOp { input, gate, up, down, activation, neuron_mask }));
            let expected = plain(mask.as_deref());
            let ours = bench.executor(2).steps(&[TOKENS - 1, 1], down.out);
            assert!(distance(&ours, &expected) < 1e-3, "{}", distance(&ours, &expected));
        }
    }
}
