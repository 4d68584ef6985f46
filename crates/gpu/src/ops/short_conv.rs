//! Short gated convolution.

use cortiq_model::ShortConvOp;

use super::{groups_for, source};
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP};
use crate::plan::Recorder;
use crate::shader::wgsl;

/// Rows that one thread works through, at least.
const CHUNK: usize = 8;

/// See [`ShortConvOp`]: one dispatch.
pub(crate) fn short_conv(rec: &mut Recorder<'_>, op: &ShortConvOp) -> Result<(), GpuError> {
    let (x, out, taps) = (rec.activation(op.input), rec.activation(op.out), rec.vector(op.taps)?);
    let (state, slot_floats) = rec.state.recurrent(op.state)?;
    let source = source(rec, "short_conv", wgsl!("short_conv.wgsl"), WORKGROUP)
        .with("WIDTH", out.width)
        .with("X_STRIDE", x.stride)
        .with("OUT_STRIDE", out.stride)
        .with("KERNEL", op.kernel)
        // Only the first chunk may need the ring.
        .with("CHUNK", CHUNK.max(op.kernel))
        .with("SLOT_FLOATS", slot_floats);
    let binds = [Bind::read(1, &x.buffer), Bind::read(2, &taps), Bind::write(3, state), Bind::write(4, &out.buffer)];
    let groups = groups_for(out.width);
    rec.dispatch(&source, &binds, move |size| [groups, size.rows, 1])
}
