//! Gated delta net between its projections.
//!
//! Decoding is bound by dispatches, not by bytes: a layer of 32 heads of 128 × 128 reads and writes 4 MiB. So up to a few
//! tokens one dispatch does everything, a workgroup per value head: the gated norm needs all columns of a head, and 32
//! workgroups move their 64 KiB in less time than a second dispatch takes. In prefill the recurrence is what takes time;
//! there heads are cut into slices of columns, and the convolution and the norm, which are parallel over rows, get
//! dispatches of their own. The same three serve heads that are too large for one workgroup.

use cortiq_model::GatedDeltaOp;

use super::source;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, team_size};
use crate::plan::{Class, Recorder};
use crate::shader::{Source, wgsl};

/// Most threads of a workgroup: enough to hide latencies, few enough for two workgroups on a multiprocessor.
const MAX_THREADS: usize = 512;

/// Columns of a slice, most of them first.
const SLICE_COLS: [usize; 4] = [32, 16, 8, 4];

/// How a workgroup of the recurrence holds its part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// Columns.
    cols: usize,
    /// Threads that share a column.
    parts: usize,
    /// Quads of rows per thread.
    held: usize,
    /// Threads.
    workgroup: usize,
}

impl Tile {
    /// The tile of `cols` columns with the least of `held` quads per thread that fits into `threads` threads and
    /// `memory` bytes of workgroup memory.
    fn fit(op: &GatedDeltaOp, cols: usize, held: &[usize], threads: usize, memory: usize) -> Option<Self> {
        let quads = op.key_dim / 4;
        held.iter().find_map(|&held| {
            let parts = quads.div_ceil(held);
            // Everybody fetches at most one quad of the next token.
            let workgroup = (parts * cols).max(2 * quads + cols / 4).next_multiple_of(64);
            let tile = Self { cols, parts, held, workgroup };
            (workgroup <= threads && tile.memory() <= memory).then_some(tile)
        })
    }

    /// Bytes of workgroup memory, with teams of 4 at the smallest.
    fn memory(&self) -> usize {
        let (vectors, values) = (2 * 3 * self.parts * self.held * 16, 3 * self.cols * 4);
        let partials = 2 * self.parts * self.cols * 8;
        // Lengths of three tokens, and what teams sum.
        let sums = 3 * self.parts * 16 + self.cols + self.workgroup * 4;
        vectors + values + partials + sums + 64
    }
}

/// See [`GatedDeltaOp`]: one dispatch for a few tokens, three for many.
pub(crate) fn gated_delta(rec: &mut Recorder<'_>, op: &GatedDeltaOp) -> Result<(), GpuError> {
    let sizes = format!("gated delta heads of {} by {} dimensions", op.key_dim, op.value_dim);
    if !op.key_dim.is_multiple_of(4) || !op.value_dim.is_multiple_of(4) {
        return Err(GpuError::Unsupported(format!("{sizes} (no multiples of 4)")));
    }
    let limits = rec.gpu.device.limits();
    let threads = limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x) as usize;
    let (threads, memory) = (threads.min(MAX_THREADS), rec.gpu.caps().workgroup_memory as usize);
    if rec.class != Class::Many
        && let Some(tile) = Tile::fit(op, op.value_dim, &[8, 16], threads, memory)
    {
        return fused(rec, op, tile);
    }
    let cols = SLICE_COLS.iter().copied().find(|&cols| op.value_dim.is_multiple_of(cols));
    let tile = cols.and_then(|cols| Tile::fit(op, cols, &[4, 8, 16], threads, memory));
    let team = team_size(rec.gpu, WORKGROUP).max(32) as usize;
    let mix_threads = (op.key_dim.max(op.value_dim) / 4).next_multiple_of(team);
    match tile {
        Some(tile) if mix_threads <= threads => sliced(rec, op, tile, mix_threads as u32),
        _ => Err(GpuError::Unsupported(format!("{sizes} (too large for a workgroup of {threads} threads)"))),
    }
}

/// Constants that the convolution and the recurrence share.
fn with_sizes(source: Source, rec: &Recorder<'_>, op: &GatedDeltaOp, slot_floats: usize) -> Source {
    source
        .with("KEY_HEADS", op.key_heads)
        .with("VALUE_HEADS", op.value_heads)
        .with("KEY_DIM", op.key_dim)
        .with("VALUE_DIM", op.value_dim)
        .with("QUADS", op.key_dim / 4)
        .with("CHANNELS", op.channels())
        .with("KERNEL", op.conv_kernel)
        .with("RING", op.ring_floats())
        .with("SLOT_FLOATS", slot_floats)
        .with("QKV_STRIDE4", rec.activation(op.qkv).stride / 4)
        .with("GATE_STRIDE", rec.activation(op.a).stride)
        .with("OUT_STRIDE", rec.activation(op.out).stride)
        .with("EPS", op.eps as f32)
}

/// The convolution, written out for the number of taps that published models have.
fn with_convolution(source: Source, op: &GatedDeltaOp) -> Source {
    source.part(match op.conv_kernel {
        4 => wgsl!("lib/delta_conv4.wgsl"),
        _ => wgsl!("lib/delta_conv.wgsl"),
    })
}

fn with_tile(source: Source, tile: Tile) -> Source {
    source.with("COLS", tile.cols).with("PARTS", tile.parts).with("HELD", tile.held)
}

/// What the convolution and its gates read, on bindings 3 to 8.
struct ConvInputs([wgpu::Buffer; 6]);

impl ConvInputs {
    fn of(rec: &mut Recorder<'_>, op: &GatedDeltaOp) -> Result<Self, GpuError> {
        Ok(Self([
            rec.activation(op.qkv).buffer,
            rec.vector(op.conv)?,
            rec.activation(op.a).buffer,
            rec.activation(op.b).buffer,
            rec.vector(op.a_log)?,
            rec.vector(op.dt_bias)?,
        ]))
    }

    fn binds(&self) -> impl Iterator<Item = Bind<'_>> {
        self.0.iter().zip(3..).map(|(buffer, slot)| Bind::read(slot, buffer))
    }
}

/// Everything in one dispatch.
fn fused(rec: &mut Recorder<'_>, op: &GatedDeltaOp, tile: Tile) -> Result<(), GpuError> {
    let (inputs, norm) = (ConvInputs::of(rec, op)?, rec.vector(op.norm)?);
    let (z, out) = (rec.activation(op.z), rec.activation(op.out));
    let finished = rec.scratch("delta finished", op.key_heads, rec.slots.rows() * op.key_heads * 4)?;
    let (state, slot_floats) = rec.state.recurrent(op.state)?;
    let source = source(rec, "gated_delta", wgsl!("gated_delta.wgsl"), tile.workgroup as u32)
        .part(wgsl!("lib/delta_inputs.wgsl"))
        .part(wgsl!("lib/delta_fused.wgsl"));
    let source = with_convolution(source, op);
    let source = match op.conv_kernel {
        4 => source.part(wgsl!("lib/delta_channels4.wgsl")),
        _ => source.part(wgsl!("lib/delta_channels.wgsl")).part(wgsl!("lib/delta_ring.wgsl")),
    };
    let source = with_tile(with_sizes(source, rec, op, slot_floats), tile);
    let mut binds = vec![Bind::write(1, state), Bind::write(2, &out.buffer)];
    binds.extend(inputs.binds());
    binds.extend([Bind::read(9, &z.buffer), Bind::read(10, &norm), Bind::write(11, &finished)]);
    let heads = op.value_heads as u32;
    rec.dispatch(&source, &binds, move |size| [heads, size.spans, 1])
}

/// Convolution, recurrence and norm.
fn sliced(rec: &mut Recorder<'_>, op: &GatedDeltaOp, tile: Tile, mix_threads: u32) -> Result<(), GpuError> {
    let inputs = ConvInputs::of(rec, op)?;
    let (qkv, out) = (rec.activation(op.qkv), rec.activation(op.out));
    let rows = rec.slots.rows();
    let mixed = rec.scratch("delta mixed", 0, rows * op.channels() * 4)?;
    let scalars = rec.scratch("delta scalars", 0, rows * op.value_heads * 16)?;
    let (state, slot_floats) = rec.state.recurrent(op.state)?;

    let mix = source(rec, "delta_mix", wgsl!("delta_mix.wgsl"), mix_threads).part(wgsl!("lib/delta_inputs.wgsl"));
    let mix = with_sizes(with_convolution(mix, op), rec, op, slot_floats);
    let mut binds = vec![Bind::read(1, state), Bind::write(2, &mixed), Bind::write(9, &scalars)];
    binds.extend(inputs.binds());
    let heads = (op.key_heads + op.value_heads) as u32;
    rec.dispatch(&mix, &binds, move |size| [heads, size.rows, 1])?;

    let rule = source(rec, "gated_delta_slices", wgsl!("gated_delta.wgsl"), tile.workgroup as u32)
        .part(wgsl!("lib/delta_ring.wgsl"))
        .part(wgsl!("lib/delta_sliced.wgsl"));
    let rule = with_tile(with_sizes(rule, rec, op, slot_floats), tile);
    let binds = [
        Bind::write(1, state),
        Bind::write(2, &out.buffer),
        Bind::read(3, &qkv.buffer),
        Bind::read(4, &mixed),
        Bind::read(5, &scalars),
    ];
    let slices = (op.value_heads * (op.value_dim / tile.cols)) as u32;
    rec.dispatch(&rule, &binds, move |size| [slices, size.spans, 1])?;
    delta_norm(rec, op)
}

/// The gated norm of every head.
fn delta_norm(rec: &mut Recorder<'_>, op: &GatedDeltaOp) -> Result<(), GpuError> {
    let (z, out, norm) = (rec.activation(op.z), rec.activation(op.out), rec.vector(op.norm)?);
    let source = source(rec, "delta_norm", wgsl!("delta_norm.wgsl"), WORKGROUP)
        .with("VALUE_HEADS", op.value_heads)
        .with("VALUE_DIM", op.value_dim)
        .with("OUT_STRIDE", out.stride)
        .with("EPS", op.eps as f32);
    let per_group = (WORKGROUP / team_size(rec.gpu, WORKGROUP)) as usize;
    let groups = op.value_heads.div_ceil(per_group) as u32;
    let binds = [Bind::write(1, &out.buffer), Bind::read(2, &z.buffer), Bind::read(3, &norm)];
    rec.dispatch(&source, &binds, move |size| [groups, size.rows, 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use cortiq_model::{Slot, StateId, VectorId};

    fn op(key_dim: usize, value_dim: usize) -> GatedDeltaOp {
        let (slot, vector) = (Slot(0), VectorId(0));
        GatedDeltaOp {
            qkv: slot,
            z: slot,
            a: slot,
            b: slot,
            conv: vector,
            a_log: vector,
            dt_bias: vector,
            norm: vector,
            eps: 1e-6,
            state: StateId(0),
            key_heads: 1,
            value_heads: 1,
            key_dim,
            value_dim,
            conv_kernel: 4,
            out: slot,
        }
    }

    #[test]
    fn tiles_cover_a_head_and_fit() {
        let fit = |k, v, held: &[usize], threads, memory| {
            Tile::fit(&op(k, v), v, held, threads, memory).map(|t| (t.parts, t.held, t.workgroup))
        };
        let roomy = 1 << 20;
        assert_eq!(fit(128, 128, &[8, 16], 512, roomy), Some((4, 8, 512)));
        assert_eq!(fit(128, 128, &[8, 16], 256, roomy), Some((2, 16, 256)), "more rows per thread");
        assert_eq!(fit(256, 256, &[8, 16], 512, roomy), None, "too many threads");
        assert_eq!(fit(128, 128, &[8, 16], 512, 4096), None, "too much memory");
        assert_eq!(fit(12, 8, &[8], 512, roomy), Some((1, 8, 64)), "rows that do not fill a thread");
        assert_eq!(fit(640, 4, &[8], 512, roomy), Some((20, 8, 384)), "threads to fetch a token");
    }
}
