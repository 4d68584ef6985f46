//! Causal softmax attention over the paged cache.
//!
//! Many tokens: tiles of queries that share keys. Else, and where heads are too wide for a tile: one row at a time, the
//! keys of a long context divided among several workgroups, whose parts a second dispatch puts together.

use cortiq_model::{AttentionOp, KvDtype};

use super::source;
use crate::kernel::{Bind, StepSize, WORKGROUP};
use crate::plan::{Activation, Class, Recorder};
use crate::shader::{Source, wgsl};
use crate::{Caps, GpuError};

/// Most query heads that share loaded keys in [`rows`].
const MAX_GROUP: usize = 8;

/// Threads that share a key in [`rows`].
const KEY_PARTS: u32 = 2;

/// Positions per split. Below twice as many, a second dispatch costs more than it gains.
const SPLIT_POSITIONS: u32 = 256;

/// Most splits of one row.
const MAX_SPLITS: u32 = 64;

/// Most splits of all rows of a step: they need a buffer.
const MAX_PARTS: u32 = 1024;

/// Rows per span, on average, from which tiles of queries are filled well enough.
const TILE_ROWS: u32 = 4;

/// Snippets that read the cache's storage type.
pub(super) fn with_cache_reads(source: Source, kv: KvDtype) -> Source {
    source.part(match kv {
        KvDtype::F16 => wgsl!("lib/cache_read_f16.wgsl"),
        _ => wgsl!("lib/cache_read_f32.wgsl"),
    })
}

/// What the dispatches of an attention share.
struct Parts<'a> {
    op: &'a AttentionOp,
    q: Activation,
    out: Activation,
    gate: Option<Activation>,
    mask: Option<wgpu::Buffer>,
}

impl Parts<'_> {
    /// Constants and snippets of the heads and of what happens to their outputs.
    fn with_heads(&self, source: Source) -> Source {
        source
            .with("HEADS", self.op.heads)
            .with("HEAD_DIM", self.op.head_dim)
            .with("OUT_STRIDE", self.out.stride)
            .part(if self.gate.is_some() { wgsl!("lib/gate.wgsl") } else { wgsl!("lib/no_gate.wgsl") })
            .part(if self.mask.is_some() { wgsl!("lib/mask.wgsl") } else { wgsl!("lib/no_mask.wgsl") })
    }

    /// Constants and snippets of the scores.
    fn with_scores(&self, rec: &Recorder<'_>, source: Source, cache_group: usize) -> Source {
        let source = source
            .with("KV_HEADS", self.op.kv_heads)
            .with("CACHE_GROUP", cache_group)
            .with("Q_STRIDE", self.q.stride)
            .with("SCALE", self.op.scale)
            .with("WINDOW", self.op.window.unwrap_or(0))
            .with("SOFTCAP", self.op.softcap.unwrap_or(0.0));
        with_cache_reads(self.with_heads(source), rec.state.kv())
    }

    fn output_binds(&self) -> Vec<Bind<'_>> {
        let mut binds = vec![Bind::write(2, &self.out.buffer)];
        binds.extend(self.mask.as_ref().map(|mask| Bind::read(3, mask)));
        binds.extend(self.gate.as_ref().map(|gate| Bind::read(6, &gate.buffer)));
        binds
    }
}

/// See [`AttentionOp`].
pub(crate) fn attention(rec: &mut Recorder<'_>, op: &AttentionOp) -> Result<(), GpuError> {
    if !op.head_dim.is_multiple_of(4) || op.head_dim > 4 * WORKGROUP as usize {
        let why = format!("heads of {} dimensions (no multiple of 4, or above {})", op.head_dim, 4 * WORKGROUP);
        return Err(GpuError::Unsupported(why));
    }
    let (q, out) = (rec.activation(op.q), rec.activation(op.out));
    let gate = op.gate.map(|gate| rec.activation(gate));
    let mask = op.head_mask.map(|mask| rec.vector(mask)).transpose()?;
    let parts = Parts { op, q, out, gate, mask };
    let tile = Tile::of(rec.gpu.caps(), op.head_dim).filter(|_| rec.class == Class::Many);
    if let Some(tile) = tile {
        tiles(rec, &parts, tile)?;
    }
    rows(rec, &parts, tile.is_some())
}

/// Whether a step of many tokens is made of prompts, rather than of single tokens of many sequences.
fn is_tiled(size: &StepSize) -> bool {
    size.rows >= TILE_ROWS * size.spans
}

/// Shape of `shaders/attention_tile.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// Four per query.
    threads: u32,
    /// Positions that pass through workgroup memory at a time.
    keys: u32,
}

impl Tile {
    /// From the fastest one on.
    const ALL: [Self; 3] =
        [Self { threads: 128, keys: 32 }, Self { threads: 128, keys: 16 }, Self { threads: 64, keys: 16 }];

    /// Widest heads: a thread holds up to four quads of four queries' outputs.
    const MAX_HEAD_DIM: usize = 256;

    /// The first tile that fits in workgroup memory.
    fn of(caps: &Caps, head_dim: usize) -> Option<Self> {
        let fits = |tile: &Self| tile.memory(head_dim) <= caps.workgroup_memory;
        Self::ALL.into_iter().find(|tile| head_dim <= Self::MAX_HEAD_DIM && fits(tile))
    }

    fn queries(self) -> u32 {
        self.threads / 4
    }

    /// Bytes of workgroup memory: queries, keys, scores, quarters of maxima, factors; and the teams' own.
    fn memory(self, head_dim: usize) -> u32 {
        let line = (head_dim / 4 + 1) as u32 * 16;
        (self.queries() + self.keys) * line + self.queries() * (self.keys + 1) * 4 + self.threads * 8
    }
}

/// Queries of a tile for heads of `head_dim`; none where rows go one by one.
pub(crate) fn tile_queries(caps: &Caps, head_dim: usize) -> Option<u32> {
    Tile::of(caps, head_dim).map(Tile::queries)
}

/// Tiles of queries.
fn tiles(rec: &mut Recorder<'_>, parts: &Parts<'_>, tile: Tile) -> Result<(), GpuError> {
    let op = parts.op;
    let (group, keys, values) = rec.state.cache(op.state)?;
    let source = source(rec, "attention_tile", wgsl!("attention_tile.wgsl"), tile.threads).with("KEYS", tile.keys);
    let source = parts.with_scores(rec, source, group);
    let mut binds = parts.output_binds();
    binds.extend([Bind::read(1, &parts.q.buffer), Bind::read(4, keys), Bind::read(5, values)]);
    let (kv_heads, heads_per_kv) = (op.kv_heads as u32, (op.heads / op.kv_heads) as u32);
    let queries = tile.queries();
    // Every span may have one run that is not full.
    rec.dispatch(&source, &binds, move |size| {
        if is_tiled(size) { [kv_heads, size.rows * heads_per_kv / queries + size.spans, 1] } else { [0; 3] }
    })
}

/// Splits of a step's keys.
fn splits(size: &StepSize, window: Option<usize>) -> u32 {
    let window = window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX));
    let positions = size.context.min(window);
    if positions <= 2 * SPLIT_POSITIONS {
        return 1;
    }
    let most = (MAX_PARTS / size.rows.max(1)).clamp(1, MAX_SPLITS);
    positions.div_ceil(SPLIT_POSITIONS).min(most)
}

/// Query heads that share loaded keys: the largest divisor of `heads_per_kv` that [`MAX_GROUP`] allows.
fn head_group(heads_per_kv: usize) -> usize {
    (1..=heads_per_kv.min(MAX_GROUP)).rev().find(|group| heads_per_kv.is_multiple_of(*group)).unwrap_or(1)
}

/// Row by row, with split keys where the context is long; nothing for steps that tiles take.
fn rows(rec: &mut Recorder<'_>, parts: &Parts<'_>, has_tiles: bool) -> Result<(), GpuError> {
    let op = parts.op;
    let group = head_group(op.heads / op.kv_heads);
    let most_parts = if rec.class == Class::One { MAX_SPLITS } else { MAX_PARTS };
    let part_bytes = op.heads * (op.head_dim / 4 + 1) * 16;
    let scratch = rec.scratch("attention parts", 0, most_parts as usize * part_bytes)?;
    let (cache_group, keys, values) = rec.state.cache(op.state)?;
    let source = source(rec, "attention_split", wgsl!("attention_split.wgsl"), WORKGROUP)
        .with("GROUP", group)
        .with("PARTS", KEY_PARTS);
    let source = parts.with_scores(rec, source, cache_group);
    let mut binds = parts.output_binds();
    binds.extend([Bind::read(1, &parts.q.buffer), Bind::read(4, keys), Bind::read(5, values)]);
    binds.push(Bind::write(7, &scratch));
    let (groups, window) = ((op.heads / group) as u32, op.window);
    rec.dispatch(&source, &binds, move |size| {
        if has_tiles && is_tiled(size) { [0; 3] } else { [groups * splits(size, window), size.rows, 1] }
    })?;
    join(rec, parts, &scratch, has_tiles)
}

/// Puts splits together; nothing where one was enough.
fn join(rec: &mut Recorder<'_>, parts: &Parts<'_>, scratch: &wgpu::Buffer, has_tiles: bool) -> Result<(), GpuError> {
    let source = source(rec, "attention_join", wgsl!("attention_join.wgsl"), WORKGROUP);
    let source = parts.with_heads(source);
    let mut binds = parts.output_binds();
    binds.push(Bind::read(7, scratch));
    let (heads, window) = (parts.op.heads as u32, parts.op.window);
    rec.dispatch(&source, &binds, move |size| {
        let skipped = (has_tiles && is_tiled(size)) || splits(size, window) == 1;
        if skipped { [0; 3] } else { [heads, size.rows, 1] }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_contexts_take_one_dispatch() {
        let size = |rows, context| StepSize { rows, spans: 1, logit_rows: 1, context };
        for (context, window, expected) in [
            (1, None, 1),
            (512, None, 1),
            (513, None, 3),
            (8192, None, 32),
            (8192, Some(512), 1),
            (8192, Some(1024), 4),
            (1 << 20, None, MAX_SPLITS),
        ] {
            assert_eq!(splits(&size(1, context), window), expected, "{context} positions, window {window:?}");
        }
    }

    #[test]
    fn the_splits_of_a_step_fit_in_their_buffer() {
        for rows in [1, 2, 15, 16, 17, 33, 500, 1024] {
            let size = StepSize { rows, spans: rows, logit_rows: 0, context: 1 << 20 };
            assert!(splits(&size, None) * rows <= MAX_PARTS, "{rows} rows");
        }
        let larger = StepSize { rows: 5000, spans: 5000, logit_rows: 0, context: 1 << 20 };
        assert_eq!(splits(&larger, None), 1, "one split needs no buffer");
    }

    #[test]
    fn groups_divide_the_heads_of_a_kv_head() {
        for (heads, group) in [(1, 1), (4, 4), (7, 7), (8, 8), (12, 6), (16, 8), (11, 1)] {
            assert_eq!(head_group(heads), group, "{heads} heads");
        }
    }

    #[test]
    fn tiles_fit_in_workgroup_memory() {
        let bytes = |threads, keys, head_dim| Tile { threads, keys }.memory(head_dim);
        assert!(bytes(128, 32, 128) <= 48 << 10);
        assert!(bytes(128, 16, 128) <= 32 << 10);
        assert!(bytes(64, 16, 256) <= 48 << 10);
        assert!(bytes(64, 16, 256) > 32 << 10, "such heads go row by row on small devices");
    }
}
