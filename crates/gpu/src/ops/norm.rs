//! RMS norm, with or without an int8 copy of its result.

use cortiq_model::{Slot, VectorId};

use super::source;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, fold};
use crate::plan::Recorder;
use crate::shader::wgsl;

/// `out = input / sqrt(mean(input²) + eps) * weight`; with `quantise`, also the plain int8 copy of `out`.
pub(crate) fn norm(
    rec: &mut Recorder<'_>,
    input: Slot,
    weight: VectorId,
    eps: f64,
    out: Slot,
    quantise: bool,
) -> Result<(), GpuError> {
    let (x, y, weight) = (rec.activation(input), rec.activation(out), rec.vector(weight)?);
    let body = if quantise { wgsl!("norm_int8.wgsl") } else { wgsl!("norm.wgsl") };
    let source = source(rec, if quantise { "norm_int8" } else { "norm" }, body, WORKGROUP)
        .with("WIDTH", x.width)
        .with("X_STRIDE", x.stride)
        .with("Y_STRIDE", y.stride)
        .with("EPS", eps as f32)
        .part(wgsl!("lib/int8.wgsl"));
    let mut binds = vec![Bind::read(1, &x.buffer), Bind::read(2, &weight), Bind::write(3, &y.buffer)];
    let copy = rec.quantised_buffers(out, 1)?;
    if quantise {
        binds.extend([Bind::write(4, &copy.codes), Bind::write(5, &copy.scales)]);
    }
    rec.dispatch(&source, &binds, |size| fold(1, size.rows))
}
