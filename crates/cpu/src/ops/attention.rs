//! Causal attention over the paged cache, one (token, head) pair per item.
//!
//! Bytes read per item: `8 * head_dim` per visible position in f32, half of it in f16, a quarter in q8. Cost is linear
//! in the context; scores go to the worker's scratch buffer.

use std::sync::OnceLock;

use cortiq_model::{AttentionOp, Batch, HostState, KvRows, ModelError, SequenceId};

use super::softmax::{sigmoid, softmax};
use crate::executor::{Model, Run};
use crate::kernels::Isa;
use crate::pool::Scratch;

/// See [`AttentionOp`].
pub(crate) fn attention(model: &Model, run: &mut Run, batch: &Batch<'_>, op: &AttentionOp) -> Result<(), ModelError> {
    let Run { slots, state, pool, .. } = run;
    let mut out = std::mem::take(&mut slots[op.out.0]);
    let queries = &slots[op.q.0];
    let gates = op.gate.map(|gate| &slots[gate.0]);
    let mask = op.head_mask.map(|id| model.program.vectors[id.0].as_slice());
    let failed = OnceLock::new();
    let done = pool.run_parts(&mut out, op.head_dim, 1, |scratch, item, y| {
        let (row, head) = (item / op.heads, item % op.heads);
        if mask.is_some_and(|mask| mask[head] == 0.0) {
            return y.fill(0.0);
        }
        let Some((sequence, position)) = locate(batch, row) else { return };
        let read = Read { state, op, sequence, position, kv_head: head / (op.heads / op.kv_heads) };
        let at = item * op.head_dim..(item + 1) * op.head_dim;
        if let Err(error) = read.attend(model.isa, scratch, &queries[at.clone()], y) {
            failed.get_or_init(|| error);
        }
        if let Some(gates) = gates {
            y.iter_mut().zip(&gates[at]).for_each(|(y, gate)| *y *= sigmoid(*gate));
        }
    });
    slots[op.out.0] = out;
    done?;
    failed.into_inner().map_or(Ok(()), Err)
}

/// Sequence and position of a row of the batch.
pub(super) fn locate(batch: &Batch<'_>, row: usize) -> Option<(SequenceId, usize)> {
    let mut first = 0;
    for span in batch.spans {
        if row < first + span.len {
            return Some((span.sequence, span.start + row - first));
        }
        first += span.len;
    }
    None
}

/// What one query head reads.
struct Read<'a> {
    state: &'a HostState,
    op: &'a AttentionOp,
    sequence: SequenceId,
    position: usize,
    kv_head: usize,
}

impl Read<'_> {
    /// `y = softmax(scale * q·K) V` over the visible positions.
    fn attend(&self, isa: Isa, scratch: &mut Scratch, q: &[f32], y: &mut [f32]) -> Result<(), ModelError> {
        let from = self.op.window.map_or(0, |window| (self.position + 1).saturating_sub(window));
        let scores = Scratch::sized(&mut scratch.scores, self.position + 1 - from);
        let scaled = Scratch::sized(&mut scratch.rows, self.op.head_dim.max(HostState::BLOCK));
        let mut at = 0;
        for (keys, _) in self.visible(from)? {
            let count = keys.count();
            isa.dot_kv(keys, q, scaled, &mut scores[at..at + count]);
            at += count;
        }
        scores.iter_mut().for_each(|s| *s *= self.op.scale);
        if let Some(cap) = self.op.softcap {
            scores.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
        }
        softmax(scores);
        y.fill(0.0);
        let mut at = 0;
        for (_, values) in self.visible(from)? {
            let count = values.count();
            isa.add_kv(values, &scores[at..at + count], scaled, y);
            at += count;
        }
        Ok(())
    }

    /// Keys and values of the visible positions, block by block.
    fn visible(&self, from: usize) -> Result<impl Iterator<Item = (KvRows<'_>, KvRows<'_>)>, ModelError> {
        let blocks = self.state.blocks(self.sequence, self.op.state.0, from, self.position + 1)?;
        Ok(blocks.map(move |block| {
            let skip = from.saturating_sub(block.start);
            (block.keys(self.kv_head).skip(skip), block.values(self.kv_head).skip(skip))
        }))
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
