//! Gated delta net between its projections, two dispatches per span: the convolution, by groups of channels; then
//! norms, the delta rule and the output norm, by value heads.
//!
//! Bytes read: the inputs once; per head its part of the state once per span, and its convolved channels once (those of
//! queries and keys once per value head that shares them).
//!
//! A span is cut into chunks of [`CHUNK`] tokens, counted from its own start. A chunk of [`CHUNKED_FROM`] tokens or
//! more is computed in its matrix form, a shorter one token by token. The two agree to rounding only, so feeding the
//! same tokens in other spans may change the last bits; other sequences in the batch and the threads never do.

mod chunk;

use cortiq_model::{Batch, GatedDeltaOp, ModelError};

use super::conv::{Conv, advance};
use super::softmax::sigmoid;
use crate::executor::{Model, Run};
use crate::kernels::{DeltaSteps, Isa};
use crate::pool::{ColumnTile, Columns, Scratch};

pub(crate) use chunk::{CHUNK, Chunk};

/// Shortest chunk for which the matrix form is faster than the recurrence.
const CHUNKED_FROM: usize = 8;

/// Channels of the convolution that a worker takes at a time.
const CONV_TILE: usize = 512;

/// Added to the sum of squares of queries and keys.
const L2_EPS: f32 = 1e-6;

/// Least logarithm of a decay; its exponential is 0 in f32, and sums of such stay exact enough.
const LEAST_LOG: f32 = -1000.0;

/// See [`GatedDeltaOp`].
pub(crate) fn gated_delta(
    model: &Model,
    run: &mut Run,
    batch: &Batch<'_>,
    op: &GatedDeltaOp,
) -> Result<(), ModelError> {
    let mut out = std::mem::take(&mut run.slots[op.out.0]);
    let result = spans(model, run, batch, op, &mut out);
    run.slots[op.out.0] = out;
    result
}

fn spans(
    model: &Model,
    run: &mut Run,
    batch: &Batch<'_>,
    op: &GatedDeltaOp,
    out: &mut [f32],
) -> Result<(), ModelError> {
    let Run { slots, state, pool, convolved, .. } = run;
    let (channels, width) = (op.channels(), op.value_heads * op.value_dim);
    let vector = |id: cortiq_model::VectorId| model.program.vectors[id.0].as_slice();
    for (first, span) in batch.first_rows() {
        let rows = |slot: cortiq_model::Slot, width: usize| &slots[slot.0][first * width..(first + span.len) * width];
        let (ring, matrices) = state.recurrent_mut(span.sequence, op.state.0)?.split_at_mut(op.ring_floats());
        let qkv = rows(op.qkv, channels);
        let conv = Conv { taps: model.taps(op.conv), ring, rows: qkv, width: channels };
        convolved.resize(span.len * channels, 0.0);
        pool.run_columns(&[Columns::new(convolved, channels)], CONV_TILE, 1, |_, _, mut tile| {
            let columns = tile.first..tile.first + tile.count;
            for t in 0..span.len {
                let row = tile.row(t);
                conv.apply(model.isa, t, columns.clone(), row);
                model.isa.silu(row);
            }
        })?;
        let layer = Layer {
            op,
            isa: model.isa,
            qkv: convolved,
            z: rows(op.z, width),
            a: rows(op.a, op.value_heads),
            b: rows(op.b, op.value_heads),
            a_log: vector(op.a_log),
            dt_bias: vector(op.dt_bias),
            norm: vector(op.norm),
        };
        let columns = Columns::new(&mut out[first * width..(first + span.len) * width], width);
        let parts = (matrices, op.key_dim * op.value_dim);
        pool.run_parts_with_columns(parts, (&columns, op.value_dim), |scratch, head, state, tile| {
            layer.head(scratch, head, state, tile);
        })?;
        advance(ring, channels, span.len, |t, row| row.copy_from_slice(&qkv[t * channels..(t + 1) * channels]));
    }
    Ok(())
}

/// What all heads of a span read.
struct Layer<'a> {
    op: &'a GatedDeltaOp,
    isa: Isa,
    /// After the convolution and SiLU.
    qkv: &'a [f32],
    z: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    a_log: &'a [f32],
    dt_bias: &'a [f32],
    norm: &'a [f32],
}

/// Cuts `len` elements off the front of a buffer.
fn cut<'a>(buffer: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (part, rest) = std::mem::take(buffer).split_at_mut(len);
    *buffer = rest;
    part
}

impl Layer<'_> {
    /// All tokens of one value head.
    fn head(&self, scratch: &mut Scratch, head: usize, state: &mut [f32], mut tile: ColumnTile<'_>) {
        let (key_dim, value_dim) = (self.op.key_dim, self.op.value_dim);
        let tokens = tile.rows();
        let longest = tokens.min(CHUNK);
        let wanted = longest * (2 * key_dim + value_dim + 3) + value_dim + Chunk::floats(longest, key_dim, value_dim);
        let mut free = Scratch::sized(&mut scratch.rows, wanted);
        let (q, k) = (cut(&mut free, longest * key_dim), cut(&mut free, longest * key_dim));
        let (v, gate) = (cut(&mut free, longest * value_dim), cut(&mut free, value_dim));
        let (log_decay, beta) = (cut(&mut free, longest), cut(&mut free, longest));
        let kq = cut(&mut free, longest);
        for start in (0..tokens).step_by(CHUNK) {
            let count = CHUNK.min(tokens - start);
            let (q, k) = (&mut q[..count * key_dim], &mut k[..count * key_dim]);
            let v = &mut v[..count * value_dim];
            let (log_decay, beta) = (&mut log_decay[..count], &mut beta[..count]);
            self.split(head, start, q, k, v);
            self.gates(head, start, log_decay, beta);
            if count < CHUNKED_FROM {
                let kq = &mut kq[..count];
                for ((kq, k), q) in kq.iter_mut().zip(k.chunks_exact(key_dim)).zip(q.chunks_exact(key_dim)) {
                    *kq = self.isa.dot(k, q);
                }
                self.isa.exp(log_decay);
                self.isa.delta_steps(DeltaSteps { state, q, k, v, decay: log_decay, beta, kq, key_dim, value_dim });
            } else {
                Chunk { state, q, k, v, log_decay, beta, key_dim, value_dim }.run(self.isa, free);
            }
            for (t, v) in v.chunks_exact_mut(value_dim).enumerate() {
                let mean = f64::from(self.isa.dot(v, v)) / value_dim as f64;
                let inverse = (1.0 / (mean + self.op.eps).sqrt()) as f32;
                let from = ((start + t) * self.op.value_heads + head) * value_dim;
                gate.copy_from_slice(&self.z[from..from + value_dim]);
                self.isa.silu(gate);
                let factors = self.norm.iter().zip(&*gate);
                for ((y, v), (weight, gate)) in tile.row(start + t).iter_mut().zip(v).zip(factors) {
                    *y = *v * inverse * weight * gate;
                }
            }
        }
    }

    /// Queries, keys and values of a chunk; queries and keys of length 1, queries divided by `sqrt(key_dim)`.
    fn split(&self, head: usize, start: usize, q: &mut [f32], k: &mut [f32], v: &mut [f32]) {
        let (key_dim, value_dim) = (self.op.key_dim, self.op.value_dim);
        let keys = self.op.key_heads * key_dim;
        let key_head = head / (self.op.value_heads / self.op.key_heads);
        let query_scale = 1.0 / (key_dim as f32).sqrt();
        for (target, from, width, scale) in [
            (&mut *q, key_head * key_dim, key_dim, Some(query_scale)),
            (&mut *k, keys + key_head * key_dim, key_dim, Some(1.0)),
            (&mut *v, 2 * keys + head * value_dim, value_dim, None),
        ] {
            let rows = self.qkv.chunks_exact(self.op.channels()).skip(start);
            for (row, source) in target.chunks_exact_mut(width).zip(rows) {
                row.copy_from_slice(&source[from..from + width]);
                if let Some(scale) = scale {
                    let inverse = scale / (self.isa.dot(row, row) + L2_EPS).sqrt();
                    row.iter_mut().for_each(|x| *x *= inverse);
                }
            }
        }
    }

    /// `g = -exp(a_log) * softplus(a + dt_bias)` and `beta = sigmoid(b)` per token.
    fn gates(&self, head: usize, start: usize, log_decay: &mut [f32], beta: &mut [f32]) {
        let rate = self.a_log[head].exp();
        for (t, (g, beta)) in log_decay.iter_mut().zip(beta).enumerate() {
            let at = (start + t) * self.op.value_heads + head;
            let x = self.a[at] + self.dt_bias[head];
            let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
            // Not `max`, which would hide a value that is not a number.
            *g = (-rate * softplus).clamp(LEAST_LOG, 0.0);
            *beta = sigmoid(self.b[at]);
        }
    }
}

#[cfg(test)]
mod tests;
