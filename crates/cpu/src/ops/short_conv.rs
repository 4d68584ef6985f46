//! Short gated convolution: `out = C * conv(B * x)`.
//!
//! Bytes read: the input once; a few per channel and token, so one dispatch over groups of channels per sequence.

use cortiq_model::{Batch, ModelError, ShortConvOp};

use super::conv::{Conv, advance};
use crate::executor::{Model, Run};
use crate::pool::{Columns, Scratch};

/// Channels that a worker takes at a time.
const TILE: usize = 128;

/// See [`ShortConvOp`].
pub(crate) fn short_conv(model: &Model, run: &mut Run, batch: &Batch<'_>, op: &ShortConvOp) -> Result<(), ModelError> {
    let mut out = std::mem::take(&mut run.slots[op.out.0]);
    let result = spans(model, run, batch, op, &mut out);
    run.slots[op.out.0] = out;
    result
}

fn spans(model: &Model, run: &mut Run, batch: &Batch<'_>, op: &ShortConvOp, out: &mut [f32]) -> Result<(), ModelError> {
    let width = model.width(op.out);
    let (taps, isa) = (model.taps(op.taps), model.isa);
    let Run { slots, state, pool, .. } = run;
    for (first, span) in batch.first_rows() {
        let input = &slots[op.input.0][3 * width * first..3 * width * (first + span.len)];
        let ring = state.recurrent_mut(span.sequence, op.state.0)?;
        let columns = [Columns::new(&mut out[width * first..width * (first + span.len)], width)];
        pool.run_columns(&columns, TILE, 1, |scratch, _, mut tile| {
            let (from, count) = (tile.first, tile.count);
            let before = (op.kernel - 1) * count;
            let buffer = Scratch::sized(&mut scratch.rows, op.kernel * count + before + span.len * count);
            let (own_taps, rows) = buffer.split_at_mut(op.kernel * count);
            let (own_ring, rows) = rows.split_at_mut(before);
            gather(own_taps, taps, width, from, count);
            gather(own_ring, ring, width, from, count);
            for (row, input) in rows.chunks_exact_mut(count).zip(input.chunks_exact(3 * width)) {
                product(row, &input[from..], &input[2 * width + from..]);
            }
            let conv = Conv { taps: own_taps, ring: own_ring, rows, width: count };
            for (t, input) in input.chunks_exact(3 * width).enumerate() {
                let y = tile.row(t);
                conv.apply(isa, t, 0..count, y);
                y.iter_mut().zip(&input[width + from..]).for_each(|(y, c)| *y *= c);
            }
        })?;
        advance(ring, width, span.len, |t, row| {
            let input = &input[3 * width * t..];
            product(row, input, &input[2 * width..]);
        });
    }
    Ok(())
}

/// `row = b * x`.
fn product(row: &mut [f32], b: &[f32], x: &[f32]) {
    for ((y, b), x) in row.iter_mut().zip(b).zip(x) {
        *y = b * x;
    }
}

/// Columns `from..from + count` of every row.
fn gather(target: &mut [f32], source: &[f32], width: usize, from: usize, count: usize) {
    for (target, source) in target.chunks_exact_mut(count).zip(source.chunks_exact(width)) {
        target.copy_from_slice(&source[from..from + count]);
    }
}

#[cfg(test)]
mod tests {
    use cortiq_model::{Op, ShortConvOp, Slot, StateDecl, StateId};

    use crate::ops::testing::{Bench, Tester, wave};

    const WIDTH: usize = 150;
    const TOKENS: usize = 9;

    fn bench(kernel: usize, threads: usize) -> (Tester, Slot) {
        let mut bench = Bench::new(TOKENS);
        let input = bench.input(wave(TOKENS * 3 * WIDTH, 1.0), 3 * WIDTH);
        let out = bench.slot(WIDTH);
        let taps = bench.vector(wave(WIDTH * kernel, 2.0));
        bench.state(StateDecl::Recurrent { floats: (kernel - 1) * WIDTH });
        bench.op(Op::ShortConv(ShortConvOp { input, taps, kernel, state: StateId(0), out }));
        (bench.executor(threads), out)
    }

    fn direct(kernel: usize) -> Vec<f32> {
        let (input, taps) = (wave(TOKENS * 3 * WIDTH, 1.0), wave(WIDTH * kernel, 2.0));
        let at = |t: usize, part: usize, c: usize| f64::from(input[t * 3 * WIDTH + part * WIDTH + c]);
        let mut out = Vec::new();
        for t in 0..TOKENS {
            for c in 0..WIDTH {
                let terms = (0..kernel).filter(|j| t + j + 1 >= kernel).map(|j| {
                    let from = t + j + 1 - kernel;
                    f64::from(taps[c * kernel + j]) * at(from, 0, c) * at(from, 2, c)
                });
                out.push((terms.sum::<f64>() * at(t, 1, c)) as f32);
            }
        }
        out
    }

    #[test]
    fn equals_a_direct_sum_however_it_is_cut() {
        for kernel in [1, 3, 4] {
            let expected = direct(kernel);
            for steps in [vec![9], vec![1; 9], vec![2, 4, 3], vec![6, 1, 2]] {
                let (mut tester, out) = bench(kernel, 2);
                let mut all = Vec::new();
                for len in &steps {
                    tester.step(*len).unwrap();
                    all.extend_from_slice(tester.slot(out));
                }
                assert_eq!(all.len(), expected.len());
                assert!(all.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{kernel} {steps:?}");
            }
        }
    }

    #[test]
    fn threads_and_chunks_do_not_change_a_bit() {
        let run = |threads, steps: &[usize]| {
            let (mut tester, out) = bench(3, threads);
            let each = steps.iter().map(|len| {
                tester.step(*len).unwrap();
                tester.slot(out).to_vec()
            });
            each.collect::<Vec<_>>().concat()
        };
        let whole = run(1, &[9]);
        assert_eq!(whole, run(4, &[9]));
        assert_eq!(whole, run(2, &[1, 5, 3]));
    }
}
