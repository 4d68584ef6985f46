//! Logits of chosen rows.

use cortiq_model::HeadOp;

use super::linear::{Product, Store, product};
use super::{Codes, groups_for, quantise, source};
use crate::GpuError;
use crate::kernel::{Bind, Dispatch, WORKGROUP};
use crate::plan::{Activation, Recorder, Rows};
use crate::shader::wgsl;
use crate::slots::padded;

/// Buffers of the head: its input, gathered, and the logits `[rows, vocab_size]`.
pub(crate) struct Head {
    pub(crate) input: Activation,
    pub(crate) logits: Activation,
}

impl Head {
    /// Buffers for up to `rows` rows at a time.
    pub(crate) fn new(gpu: &crate::Gpu, hidden_size: usize, vocab_size: usize, rows: usize) -> Result<Self, GpuError> {
        let make = |label: &str, width: usize, stride: usize| -> Result<Activation, GpuError> {
            Ok(Activation { buffer: gpu.buffer(label, (rows * stride * 4) as u64)?, width, stride })
        };
        let input = make("head input", hidden_size, padded(hidden_size))?;
        Ok(Self { input, logits: make("logits", vocab_size, vocab_size)? })
    }
}

/// Records the head for the recorder's class of logit rows, up to `rows` at a time.
pub(crate) fn head(mut rec: Recorder<'_>, op: &HeadOp, head: &Head, rows: usize) -> Result<Vec<Dispatch>, GpuError> {
    // Nothing amplifies what the logits are off by.
    rec.codes = Codes::One;
    let hidden = rec.activation(op.input);
    let gather = source(&rec, "gather", wgsl!("gather.wgsl"), WORKGROUP).with("STRIDE", hidden.stride);
    let groups = groups_for(hidden.stride);
    let binds = [Bind::read(1, &hidden.buffer), Bind::write(2, &head.input.buffer)];
    rec.dispatch(&gather, &binds, move |size| [groups, size.logit_rows, 1])?;
    let matrix = rec.matrix(&[op.weight])?;
    let int8 = if rec.uses_int8(matrix.layout) {
        let bytes = rows * hidden.stride;
        let codes = rec.scratch("head codes", 0, bytes)?;
        let scales = rec.scratch("head scales", 0, bytes / 4)?;
        let buffers = crate::plan::Quantised { codes, scales, rows, per_value: rec.codes };
        quantise(&mut rec, &head.input, matrix.fields.as_ref(), 1, &buffers, Rows::Logits)?;
        Some(buffers)
    } else {
        None
    };
    let (outputs, class) = ([head.logits.clone()], rec.class);
    let logits = Product {
        x: &head.input,
        int8,
        matrix: &matrix,
        outputs: &outputs,
        bias: None,
        store: Store::Set,
        rows: Rows::Logits,
        class,
    };
    product(&mut rec, &logits)?;
    if let Some(cap) = op.softcap {
        let source = source(&rec, "softcap", wgsl!("softcap.wgsl"), WORKGROUP)
            .with("WIDTH", head.logits.width)
            .with("STRIDE", head.logits.stride)
            .with("CAP", cap);
        let groups = groups_for(head.logits.width);
        rec.dispatch(&source, &[Bind::write(1, &head.logits.buffer)], move |size| [groups, size.logit_rows, 1])?;
    }
    Ok(rec.finish())
}
