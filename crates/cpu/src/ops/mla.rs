//! Latent attention on the compressed rows, without expanding them to keys and values.
//!
//! Three dispatches: queries into the compressed space (`q_nope W_k` per head), scores and weighted sums of compressed
//! rows (a few heads of a token at a time), and out of it (`W_v` per head). Bytes read: `kv_b` once per step, half of
//! it in the first and half in the third dispatch; the cache once per group of heads, decoded a block at a time where
//! it is not f32.

use std::sync::OnceLock;

use cortiq_model::{Batch, HostState, MlaAttentionOp, MlaStoreOp, ModelError};
use cortiq_quant::MatrixView;

use super::attention::locate;
use super::elementwise::rms_norm;
use super::product::decode_rows;
use super::rope::Angles;
use super::softmax::softmax;
use crate::executor::{Model, Run};
use crate::kernels::{Isa, Left, Right};
use crate::pool::{ColumnTile, Columns, Pool, Scratch};

/// Tokens that are taken through a head's matrix together.
const TOKENS: usize = 24;

/// Most heads that share a read of the cache.
const HEADS: usize = 8;

/// See [`MlaStoreOp`].
pub(crate) fn mla_store(model: &Model, run: &mut Run, batch: &Batch<'_>, op: &MlaStoreOp) -> Result<(), ModelError> {
    let Run { slots, state, angles, pairs, .. } = run;
    let angles = Angles::new(model, angles, op.rope);
    let head_width = op.nope_dim + op.rope_dim;
    let (q_width, kv_width) = (op.heads * head_width, op.kv_rank + op.rope_dim);
    for row in batch.rows() {
        for head in slots[op.q.0][row.index * q_width..][..q_width].chunks_exact_mut(head_width) {
            angles.rotate(row.index, &mut head[op.nope_dim..], pairs);
        }
        let kv = &mut slots[op.kv.0][row.index * kv_width..][..kv_width];
        let (compressed, key) = kv.split_at_mut(op.kv_rank);
        rms_norm(compressed, Some(&model.program.vectors[op.kv_norm.0]), op.eps);
        angles.rotate(row.index, key, pairs);
        state.write(row.sequence, op.state.0, row.position, kv, &[])?;
    }
    Ok(())
}

/// See [`MlaAttentionOp`].
pub(crate) fn mla_attention(
    model: &Model,
    run: &mut Run,
    batch: &Batch<'_>,
    op: &MlaAttentionOp,
) -> Result<(), ModelError> {
    let mut out = std::mem::take(&mut run.slots[op.out.0]);
    let Run { slots, state, latent, pool, .. } = run;
    let mask = op.head_mask.map(|id| model.program.vectors[id.0].as_slice());
    let layer = Latent { op, isa: model.isa, kv_b: model.matrix(op.kv_b), mask, key: op.kv_rank + op.rope_dim };
    latent.resize(batch.tokens.len() * op.heads * layer.key, 0.0);
    let result = layer.run(pool, state, batch, &slots[op.q.0], latent, &mut out);
    run.slots[op.out.0] = out;
    result
}

/// One latent attention layer.
struct Latent<'a> {
    op: &'a MlaAttentionOp,
    isa: Isa,
    kv_b: &'a MatrixView<'a>,
    /// See [`MlaAttentionOp::head_mask`].
    mask: Option<&'a [f32]>,
    /// Width of a stored row.
    key: usize,
}

impl Latent<'_> {
    /// `latent` is `[tokens, heads, key]`: queries as `[compressed | rotated]`, whose compressed part the second
    /// dispatch replaces by the weighted sums.
    fn run(
        &self,
        pool: &mut Pool,
        state: &HostState,
        batch: &Batch<'_>,
        q: &[f32],
        latent: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), ModelError> {
        let op = self.op;
        let columns = [Columns::new(latent, op.heads * self.key)];
        pool.run_columns(&columns, self.key, 1, |scratch, _, tile| self.compress(scratch, q, tile))?;
        let group = self.heads_together(batch.tokens.len(), pool.threads());
        let failed = OnceLock::new();
        pool.run_parts(latent, group * self.key, 1, |scratch, item, heads| {
            let row = item * group / op.heads;
            if let Err(error) = self.attend(scratch, state, batch, row, heads) {
                failed.get_or_init(|| error);
            }
        })?;
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        let columns = [Columns::new(out, op.heads * op.value_dim)];
        pool.run_columns(&columns, op.value_dim, 1, |scratch, _, tile| self.expand(scratch, latent, tile))?;
        Ok(())
    }

    /// The largest divisor of the heads that still gives every thread an item. It changes no result.
    fn heads_together(&self, tokens: usize, threads: usize) -> usize {
        let most = (self.op.heads * tokens / threads).clamp(1, HEADS);
        (1..=most).rev().find(|group| self.op.heads.is_multiple_of(*group)).unwrap_or(1)
    }

    /// Queries of one head, all tokens: `[q_nope W_k | q_rope]`.
    fn compress(&self, scratch: &mut Scratch, q: &[f32], mut tile: ColumnTile<'_>) {
        let (op, tokens) = (self.op, tile.rows());
        let head = tile.first / self.key;
        let (head_width, rank) = (op.nope_dim + op.rope_dim, op.kv_rank);
        let buffer = Scratch::sized(&mut scratch.rows, (op.nope_dim + TOKENS) * rank);
        let (weights, products) = buffer.split_at_mut(op.nope_dim * rank);
        decode_rows(self.kv_b, head * (op.nope_dim + op.value_dim), weights);
        let q = &q[head * head_width..];
        let q_width = op.heads * head_width;
        for first in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - first);
            let products = &mut products[..count * rank];
            products.fill(0.0);
            let left = Left::rows(&q[first * q_width..], count, op.nope_dim, q_width);
            self.isa.add_products(left, Right { values: weights, cols: rank, row_step: rank }, products, rank);
            for (t, product) in products.chunks_exact(rank).enumerate() {
                let row = tile.row(first + t);
                row[..rank].copy_from_slice(product);
                row[rank..].copy_from_slice(&q[(first + t) * q_width + op.nope_dim..][..op.rope_dim]);
            }
        }
    }

    /// Some heads of one token, `[heads, key]`: the sums of compressed rows, weighted by the softmax of the scores,
    /// take the place of the compressed queries.
    fn attend(
        &self,
        scratch: &mut Scratch,
        state: &HostState,
        batch: &Batch<'_>,
        row: usize,
        heads: &mut [f32],
    ) -> Result<(), ModelError> {
        let Some((sequence, position)) = locate(batch, row) else { return Ok(()) };
        let (count, visible, rank) = (heads.len() / self.key, position + 1, self.op.kv_rank);
        let scores = Scratch::sized(&mut scratch.scores, count * visible);
        let buffer = Scratch::sized(&mut scratch.rows, count * (HostState::BLOCK + rank) + HostState::BLOCK * self.key);
        let (products, rest) = buffer.split_at_mut(count * HostState::BLOCK);
        let (sums, decoded) = rest.split_at_mut(count * rank);
        for block in state.blocks(sequence, self.op.state.0, 0, visible)? {
            let products = &mut products[..count * block.len];
            self.isa.dot_rows(self.isa.kv_in_f32(block.keys(0), decoded), heads, self.key, products);
            for (products, scores) in products.chunks_exact(block.len).zip(scores.chunks_exact_mut(visible)) {
                let target = &mut scores[block.start..block.start + block.len];
                target.iter_mut().zip(products).for_each(|(s, p)| *s = p * self.op.scale);
            }
        }
        scores.chunks_exact_mut(visible).for_each(softmax);
        sums.fill(0.0);
        for block in state.blocks(sequence, self.op.state.0, 0, visible)? {
            let left = Left::rows(&scores[block.start..], count, block.len, visible);
            let values = self.isa.kv_in_f32(block.keys(0), decoded);
            let right = Right { values, cols: rank, row_step: self.key };
            self.isa.add_products(left, right, sums, rank);
        }
        for (head, sum) in heads.chunks_exact_mut(self.key).zip(sums.chunks_exact(rank)) {
            head[..rank].copy_from_slice(sum);
        }
        Ok(())
    }

    /// Outputs of one head, all tokens: `W_v` times the weighted sums.
    fn expand(&self, scratch: &mut Scratch, latent: &[f32], mut tile: ColumnTile<'_>) {
        let (op, tokens, rank) = (self.op, tile.rows(), self.op.kv_rank);
        let head = tile.first / op.value_dim;
        if self.mask.is_some_and(|mask| mask[head] == 0.0) {
            return (0..tokens).for_each(|t| tile.row(t).fill(0.0));
        }
        let buffer = Scratch::sized(&mut scratch.rows, op.value_dim * rank + TOKENS * (rank + op.value_dim));
        let (weights, rest) = buffer.split_at_mut(op.value_dim * rank);
        let (inputs, products) = rest.split_at_mut(TOKENS * rank);
        decode_rows(self.kv_b, head * (op.nope_dim + op.value_dim) + op.nope_dim, weights);
        for first in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - first);
            for (t, input) in inputs.chunks_exact_mut(rank).take(count).enumerate() {
                let from = ((first + t) * op.heads + head) * self.key;
                input.copy_from_slice(&latent[from..from + rank]);
            }
            let products = &mut products[..count * op.value_dim];
            self.isa.dot_rows(weights, &inputs[..count * rank], rank, products);
            for (t, product) in products.chunks_exact(op.value_dim).enumerate() {
                tile.row(first + t).copy_from_slice(product);
            }
        }
    }
}

#[cfg(test)]
#[path = "mla_tests.rs"]
mod tests;
