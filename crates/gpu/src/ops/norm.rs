//! RMS norm, with or without an int8 copy of its result.

use cortiq_model::{Slot, VectorId};

use super::source;
use crate::GpuError;
use crate::kernel::{Bind, fold};
use crate::plan::{Quantised, Recorder};
use crate::shader::wgsl;

/// Threads of a workgroup: a quad each, mostly.
const NORM_THREADS: u32 = 1024;

/// `out = input / sqrt(mean(input²) + eps) * weight`; with `copy`, also the plain int8 copy of `out`.
pub(crate) fn norm(
    rec: &mut Recorder<'_>,
    input: Slot,
    weight: VectorId,
    eps: f64,
    out: Slot,
    copy: Option<&Quantised>,
) -> Result<(), GpuError> {
    let (x, y, weight) = (rec.activation(input), rec.activation(out), rec.vector(weight)?);
    let threads = rec.gpu.caps().threads(NORM_THREADS);
    let source = match copy {
        Some(copy) => copy
            .per_value
            .constant(source(rec, "norm_int8", wgsl!("norm_int8.wgsl"), threads))
            .with("PACKED_REST", copy.rest(y.stride / 32))
            .part(wgsl!("lib/octet.wgsl")),
        None => source(rec, "norm", wgsl!("norm.wgsl"), threads),
    };
    let source = source.with("WIDTH", x.width).with("X_STRIDE", x.stride).with("EPS", eps as f32);
    let mut binds = vec![Bind::read(1, &x.buffer), Bind::read(2, &weight), Bind::write(3, &y.buffer)];
    binds.extend(copy.iter().flat_map(|copy| [Bind::write(4, &copy.codes), Bind::write(5, &copy.scales)]));
    rec.dispatch(&source, &binds, |size| fold(1, size.rows))
}
