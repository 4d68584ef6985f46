//! The rows of a sequence that are not quantised yet, or may be written again soon.

use std::ops::Range;

use super::KvLayer;
use super::blocks::{BLOCK, Part, Place, key_numbers, numbers, zeros};
use super::rows::{code_of, scale_of};
use crate::ModelError;

/// Blocks of a sequence that are kept exactly.
pub(super) const TAIL_BLOCKS: usize = 2;

/// Exact rows of a sequence whose blocks are quantised: of every layer the block that is being filled and the one
/// before it, so that going back a little loses nothing.
#[derive(Clone, Default)]
pub(super) struct Tail {
    /// Per layer, per slot: laid out as the layer's part of an f32 block. Block `b` is in slot `b % TAIL_BLOCKS`.
    rows: Vec<f32>,
    /// Per layer, per slot: the number of the block whose rows are there.
    held: Vec<[Option<usize>; TAIL_BLOCKS]>,
}

impl Tail {
    /// An empty tail with room for `count` numbers of `layers` layers.
    pub(super) fn new(count: usize, layers: usize) -> Result<Self, ModelError> {
        Ok(Self { rows: zeros(count)?, held: vec![[None; TAIL_BLOCKS]; layers] })
    }

    /// Bytes of the rows.
    pub(super) fn bytes(&self) -> usize {
        self.rows.len() * size_of::<f32>()
    }

    fn range(place: &Place, block: usize) -> Range<usize> {
        let count = numbers(&place.layer);
        let first = place.tail_offset + block % TAIL_BLOCKS * count;
        first..first + count
    }

    /// A layer's rows of block number `block`, if they are here.
    pub(super) fn part(&self, place: &Place, block: usize) -> Option<Part<'_>> {
        let held = self.held.get(place.index)?[block % TAIL_BLOCKS];
        (held == Some(block)).then(|| Part::F32(&self.rows[Self::range(place, block)]))
    }

    /// Writes one position. The last row of a block quantises the block into `codes` and `scales`, the layer's part of
    /// it. Where an earlier row of a quantised block is written again, the rows before it are taken from there.
    pub(super) fn write(
        &mut self,
        place: &Place,
        position: usize,
        (keys, values): (&[f32], &[f32]),
        codes: &mut [i8],
        scales: &mut [f32],
    ) {
        let (block, row) = (position / BLOCK, position % BLOCK);
        let exact = &mut self.rows[Self::range(place, block)];
        let held = &mut self.held[place.index][block % TAIL_BLOCKS];
        if held.replace(block) != Some(block) && row > 0 {
            unpack(&place.layer, codes, scales, exact);
        }
        place.put(exact, row, keys, values, |x| x);
        if row + 1 == BLOCK {
            pack(&place.layer, exact, codes, scales);
        }
    }
}

/// Quantises a layer's part of a full block.
fn pack(layer: &KvLayer, exact: &[f32], codes: &mut [i8], scales: &mut [f32]) {
    let KvLayer { kv_heads, key_dim, value_dim, .. } = *layer;
    let (keys, values) = exact.split_at(key_numbers(layer));
    let (key_codes, value_codes) = codes.split_at_mut(key_numbers(layer));
    let (key_scales, value_scales) = scales.split_at_mut(kv_heads * key_dim);
    for head in 0..kv_heads {
        let at = head * BLOCK * key_dim..(head + 1) * BLOCK * key_dim;
        let (keys, codes) = (&keys[at.clone()], &mut key_codes[at]);
        for channel in 0..key_dim {
            let column = || keys.iter().skip(channel).step_by(key_dim);
            let scale = scale_of(column().copied());
            key_scales[head * key_dim + channel] = scale;
            let codes = codes.iter_mut().skip(channel).step_by(key_dim);
            codes.zip(column()).for_each(|(code, x)| *code = code_of(*x, scale));
        }
    }
    if value_dim > 0 {
        let rows = values.chunks_exact(value_dim).zip(value_codes.chunks_exact_mut(value_dim));
        for ((row, codes), scale) in rows.zip(value_scales) {
            *scale = scale_of(row.iter().copied());
            codes.iter_mut().zip(row).for_each(|(code, x)| *code = code_of(*x, *scale));
        }
    }
}

/// The opposite of [`pack`].
fn unpack(layer: &KvLayer, codes: &[i8], scales: &[f32], exact: &mut [f32]) {
    let part = Part::Q8 { codes, scales };
    let (keys, values) = exact.split_at_mut(key_numbers(layer));
    for (side, width, is_key) in [(keys, layer.key_dim, true), (values, layer.value_dim, false)] {
        for head in 0..layer.kv_heads {
            let rows = if is_key { part.keys(layer, head, BLOCK) } else { part.values(layer, head, BLOCK) };
            rows.decode(&mut side[head * BLOCK * width..(head + 1) * BLOCK * width]);
        }
    }
}
