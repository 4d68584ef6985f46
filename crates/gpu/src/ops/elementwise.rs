//! Operations without sums.

use cortiq_model::Slot;

use super::{groups_for, source};
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP};
use crate::plan::Recorder;
use crate::shader::wgsl;

/// `into += add`.
pub(crate) fn residual(rec: &mut Recorder<'_>, add: Slot, into: Slot) -> Result<(), GpuError> {
    let (x, y) = (rec.activation(add), rec.activation(into));
    let source = source(rec, "residual", wgsl!("residual.wgsl"), WORKGROUP).with("STRIDE", x.stride);
    let groups = groups_for(x.stride);
    rec.dispatch(&source, &[Bind::read(1, &x.buffer), Bind::write(2, &y.buffer)], move |size| [groups, size.rows, 1])
}

/// `slot *= factor`.
pub(crate) fn scale(rec: &mut Recorder<'_>, slot: Slot, factor: f32) -> Result<(), GpuError> {
    let x = rec.activation(slot);
    let source = source(rec, "scale", wgsl!("scale.wgsl"), WORKGROUP).with("STRIDE", x.stride).with("FACTOR", factor);
    let groups = groups_for(x.stride);
    rec.dispatch(&source, &[Bind::write(1, &x.buffer)], move |size| [groups, size.rows, 1])
}

/// `out = [first | second]`.
pub(crate) fn concat(rec: &mut Recorder<'_>, first: Slot, second: Slot, out: Slot) -> Result<(), GpuError> {
    let (a, b, y) = (rec.activation(first), rec.activation(second), rec.activation(out));
    let source = source(rec, "concat", wgsl!("concat.wgsl"), WORKGROUP)
        .with("FIRST", a.width)
        .with("SECOND", b.width)
        .with("FIRST_STRIDE", a.stride)
        .with("SECOND_STRIDE", b.stride)
        .with("OUT_STRIDE", y.stride);
    let binds = [Bind::read(1, &a.buffer), Bind::read(2, &b.buffer), Bind::write(3, &y.buffer)];
    let groups = groups_for(y.width);
    rec.dispatch(&source, &binds, move |size| [groups, size.rows, 1])
}

/// `[query | gate]` per head, taken apart.
pub(crate) fn split_gate(
    rec: &mut Recorder<'_>,
    input: Slot,
    q: Slot,
    gate: Slot,
    head_dim: usize,
) -> Result<(), GpuError> {
    let (x, a, b) = (rec.activation(input), rec.activation(q), rec.activation(gate));
    let source = source(rec, "split_gate", wgsl!("split_gate.wgsl"), WORKGROUP)
        .with("WIDTH", a.width)
        .with("HEAD_DIM", head_dim)
        .with("X_STRIDE", x.stride)
        .with("OUT_STRIDE", a.stride);
    let binds = [Bind::read(1, &x.buffer), Bind::write(2, &a.buffer), Bind::write(3, &b.buffer)];
    let groups = groups_for(a.width);
    rec.dispatch(&source, &binds, move |size| [groups, size.rows, 1])
}
