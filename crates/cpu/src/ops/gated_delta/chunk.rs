//! A chunk of tokens of one head at once: the delta rule in matrix form (WY representation).
//!
//! With `G_t` the sum of the log decays up to token t of the chunk and `S_0` the state before it, the rule unrolls to
//! `S_t = e^{G_t} S_0 + Σ_{s≤t} e^{G_t-G_s} k_s d_sᵀ`, so the corrections `d` solve a unit lower triangular system:
//!
//! ```text
//! d_t + Σ_{s<t} β_t e^{G_t-G_s} (k_t·k_s) d_s = β_t (v_t - e^{G_t} S_0ᵀ k_t)
//! o_t = e^{G_t} S_0ᵀ q_t + Σ_{s≤t} e^{G_t-G_s} (q_t·k_s) d_s
//! ```
//!
//! Only exponentials of differences that are 0 or less occur, and nothing is divided. Source: Gated DeltaNet
//! (arXiv 2412.06464) and DeltaNet (arXiv 2406.06484). Per token and head it reads the state from the L2 cache
//! a few times per chunk instead of twice per token; the sums are products with full register tiles.

use super::cut;
use crate::kernels::{Isa, Left, Right};

/// Tokens of a chunk. The triangular part grows with it, the passes over the state shrink; of 16, 32 and 64 this was
/// the fastest for heads of 128 by 128 on AVX2.
pub(crate) const CHUNK: usize = 32;

/// Rows of the triangular matrices that are worked on together: whole register tiles.
const BLOCK: usize = 6;

/// Rows of the triangular matrices start at multiples of it, so that products with them need no single columns.
const PITCH: usize = 16;

/// One chunk of one head.
pub(crate) struct Chunk<'a> {
    /// `[key_dim, value_dim]`, moved to the end of the chunk.
    pub(crate) state: &'a mut [f32],
    /// `[tokens, key_dim]`; scaled by the decays afterwards.
    pub(crate) q: &'a mut [f32],
    /// `[tokens, key_dim]`.
    pub(crate) k: &'a [f32],
    /// `[tokens, value_dim]`: values, then outputs.
    pub(crate) v: &'a mut [f32],
    /// Logarithms of the decays, 0 or less, per token; at most [`CHUNK`] tokens.
    pub(crate) log_decay: &'a [f32],
    /// Per token.
    pub(crate) beta: &'a [f32],
    /// Width of a key.
    pub(crate) key_dim: usize,
    /// Width of a value.
    pub(crate) value_dim: usize,
}

impl Chunk<'_> {
    /// Length of the scratch that [`Chunk::run`] wants.
    pub(crate) fn floats(tokens: usize, key_dim: usize, value_dim: usize) -> usize {
        let pitch = tokens.next_multiple_of(PITCH);
        tokens * (3 * pitch + value_dim + key_dim + 1) + key_dim * pitch
    }

    /// Computes the outputs and the state after the chunk.
    pub(crate) fn run(mut self, isa: Isa, mut scratch: &mut [f32]) {
        let (tokens, key_dim, value_dim) = (self.log_decay.len(), self.key_dim, self.value_dim);
        let pitch = tokens.next_multiple_of(PITCH);
        let free = &mut scratch;
        let (ratio, passed) = (cut(free, tokens * pitch), cut(free, tokens));
        self.decays(isa, ratio, passed, pitch);
        let (lower, mixing) = (cut(free, tokens * pitch), cut(free, tokens * pitch));
        self.triangles(isa, ratio, lower, mixing, cut(free, key_dim * pitch));
        let (d, keys) = (cut(free, tokens * value_dim), cut(free, tokens * key_dim));
        self.right_side(isa, passed, d, keys);
        solve(isa, lower, pitch, d, value_dim);
        for first in (0..tokens).step_by(BLOCK) {
            let rows = BLOCK.min(tokens - first);
            let left = Left::rows(&mixing[first * pitch..], rows, first + rows, pitch);
            let right = Right { values: d, cols: value_dim, row_step: value_dim };
            isa.add_products(left, right, &mut self.v[first * value_dim..], value_dim);
        }
        let last = &ratio[(tokens - 1) * pitch..];
        for (d, factor) in d.chunks_exact_mut(value_dim).zip(last) {
            d.iter_mut().for_each(|d| *d *= factor);
        }
        let all = passed[tokens - 1];
        self.state.iter_mut().for_each(|s| *s *= all);
        let right = Right { values: d, cols: value_dim, row_step: value_dim };
        isa.add_products(Left::transposed(self.k, key_dim, tokens), right, self.state, value_dim);
    }

    /// `ratio[t, s] = e^{G_t - G_s}` for `s <= t`, `passed[t] = e^{G_t}`. The sums are f64, so that their differences
    /// stay exact however far they have come.
    fn decays(&self, isa: Isa, ratio: &mut [f32], passed: &mut [f32], pitch: usize) {
        let mut sums = [0.0f64; CHUNK];
        let mut sum = 0.0;
        for (g, total) in self.log_decay.iter().zip(&mut sums) {
            sum += f64::from(*g);
            *total = sum;
        }
        for (t, row) in ratio.chunks_exact_mut(pitch).enumerate() {
            for (r, earlier) in row.iter_mut().zip(&sums[..=t]) {
                *r = (sums[t] - earlier) as f32;
            }
            isa.exp(&mut row[..=t]);
            passed[t] = sums[t] as f32;
        }
        isa.exp(passed);
    }

    /// `lower[t, s] = -β_t e^{G_t-G_s} (k_t·k_s)` for `s < t`, `mixing[t, s] = e^{G_t-G_s} (q_t·k_s)` for `s <= t`;
    /// `mixing` is 0 in the rest of its block. `transposed` is scratch, `[key_dim, pitch]`.
    fn triangles(&self, isa: Isa, ratio: &[f32], lower: &mut [f32], mixing: &mut [f32], transposed: &mut [f32]) {
        let (tokens, key_dim) = (self.beta.len(), self.key_dim);
        let pitch = tokens.next_multiple_of(PITCH);
        // The columns that fill up the pitch keep what they had: they only reach products that nobody reads.
        for (t, key) in self.k.chunks_exact(key_dim).enumerate() {
            for (column, x) in transposed.chunks_exact_mut(pitch).zip(key) {
                column[t] = *x;
            }
        }
        for (rows, target) in [(self.k, &mut *lower), (&*self.q, &mut *mixing)] {
            target.fill(0.0);
            for first in (0..tokens).step_by(BLOCK) {
                let count = BLOCK.min(tokens - first);
                let cols = (first + count).next_multiple_of(PITCH);
                let left = Left::rows(&rows[first * key_dim..], count, key_dim, key_dim);
                let right = Right { values: transposed, cols, row_step: pitch };
                isa.add_products(left, right, &mut target[first * pitch..], pitch);
            }
        }
        let rows = lower.chunks_exact_mut(pitch).zip(mixing.chunks_exact_mut(pitch)).zip(ratio.chunks_exact(pitch));
        for (t, ((lower, mixing), ratio)) in rows.enumerate() {
            let minus_beta = -self.beta[t];
            for ((l, m), r) in lower[..=t].iter_mut().zip(&mut mixing[..=t]).zip(ratio) {
                *l *= minus_beta * r;
                *m *= r;
            }
            mixing[t + 1..].fill(0.0);
        }
    }

    /// `d_t = β_t (v_t - e^{G_t} S_0ᵀ k_t)`, and the outputs' first term in place of the values. `keys` is scratch.
    fn right_side(&mut self, isa: Isa, passed: &[f32], d: &mut [f32], keys: &mut [f32]) {
        let (tokens, key_dim, value_dim) = (self.beta.len(), self.key_dim, self.value_dim);
        d.copy_from_slice(self.v);
        keys.copy_from_slice(self.k);
        let rows = d.chunks_exact_mut(value_dim).zip(keys.chunks_exact_mut(key_dim));
        let rows = rows.zip(self.q.chunks_exact_mut(key_dim)).zip(self.beta.iter().zip(passed));
        for (((d, key), q), (beta, passed)) in rows {
            d.iter_mut().for_each(|d| *d *= beta);
            key.iter_mut().for_each(|k| *k *= -beta * passed);
            q.iter_mut().for_each(|q| *q *= passed);
        }
        let state = Right { values: self.state, cols: value_dim, row_step: value_dim };
        isa.add_products(Left::rows(keys, tokens, key_dim, key_dim), state, d, value_dim);
        self.v.fill(0.0);
        isa.add_products(Left::rows(self.q, tokens, key_dim, key_dim), state, self.v, value_dim);
    }
}

/// Forward substitution in place: `d_t += Σ_{s<t} lower[t, s] d_s`, block by block.
fn solve(isa: Isa, lower: &[f32], pitch: usize, d: &mut [f32], value_dim: usize) {
    let tokens = d.len() / value_dim;
    for first in (0..tokens).step_by(BLOCK) {
        let count = BLOCK.min(tokens - first);
        let (done, rest) = d.split_at_mut(first * value_dim);
        let left = Left::rows(&lower[first * pitch..], count, first, pitch);
        isa.add_products(left, Right { values: done, cols: value_dim, row_step: value_dim }, rest, value_dim);
        for t in 1..count {
            let factors = &lower[(first + t) * pitch + first..][..t];
            let (before, own) = rest.split_at_mut(t * value_dim);
            for (factor, row) in factors.iter().zip(before.chunks_exact(value_dim)) {
                isa.add_scaled(&mut own[..value_dim], *factor, row);
            }
        }
    }
}
