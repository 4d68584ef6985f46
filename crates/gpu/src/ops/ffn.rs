//! Gated feed-forward networks: `down(act(gate x) * up x)`.

use cortiq_model::{Activation as Function, GatedFfnOp, Slot};

use super::linear::{Store, product_of};
use super::{groups_for, linear, source};
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP};
use crate::plan::{Activation, Recorder};
use crate::shader::{Source, wgsl};

/// The snippet with `activate`.
pub(super) fn with_function(source: Source, function: Function) -> Source {
    source.part(match function {
        Function::Silu => wgsl!("lib/silu.wgsl"),
        Function::GeluTanh => wgsl!("lib/gelu_tanh.wgsl"),
    })
}

/// See [`GatedFfnOp`]. With `into`, the result is added there instead of being stored.
pub(crate) fn gated_ffn(rec: &mut Recorder<'_>, op: &GatedFfnOp, into: Option<Slot>) -> Result<(), GpuError> {
    linear(rec, op.input, &[op.gate, op.up], None)?;
    gated_product(rec, op)?;
    let out = rec.activation(into.unwrap_or(op.down.out));
    let store = if into.is_some() { Store::Add } else { Store::Set };
    product_of(rec, op.gate.out, &[op.down], &[out], store)
}

/// The product of a network's gate and up slots, in the gate's.
pub(super) fn gated_product(rec: &mut Recorder<'_>, op: &GatedFfnOp) -> Result<(), GpuError> {
    let mask = op.neuron_mask.map(|mask| rec.vector(mask)).transpose()?;
    let (gate, up) = (rec.activation(op.gate.out), rec.activation(op.up.out));
    glu(rec, &gate, &up, op.activation, mask.as_ref())
}

/// `gate = act(gate) * up`, times the mask of neurons.
pub(super) fn glu(
    rec: &mut Recorder<'_>,
    gate: &Activation,
    up: &Activation,
    function: Function,
    mask: Option<&wgpu::Buffer>,
) -> Result<(), GpuError> {
    let source = source(rec, "glu", wgsl!("glu.wgsl"), WORKGROUP).with("WIDTH", gate.width).with("STRIDE", gate.stride);
    let mask_snippet = if mask.is_some() { wgsl!("lib/mask.wgsl") } else { wgsl!("lib/no_mask.wgsl") };
    let source = with_function(source, function).part(mask_snippet);
    let mut binds = vec![Bind::write(1, &gate.buffer), Bind::read(2, &up.buffer)];
    binds.extend(mask.map(|mask| Bind::read(3, mask)));
    let groups = groups_for(gate.width);
    rec.dispatch(&source, &binds, move |size| [groups, size.rows, 1])
}
