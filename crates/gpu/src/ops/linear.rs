//! Linear maps: one input, one or several matrices, in all classes of batch size.

use std::sync::Arc;

use cortiq_model::{LinearPart, MatrixId, Slot, VectorId};

use super::gemm::gemm;
use super::{fused, quantise, source};
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, fold, team_size};
use crate::plan::{Activation, Class, Quantised, Recorder, Rows};
use crate::shader::{Source, wgsl};
use crate::slots::padded;
use crate::weights::{DeviceMatrix, Layout, Piece};

/// Most outputs of one dispatch.
const MAX_OUTPUTS: usize = 4;

/// What happens to a finished sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// It is written.
    Set,
    /// It is added.
    Add,
}

/// A product to record: `x` times stacked matrices.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a Activation,
    /// The int8 copy of `x`, when the layout takes it in this class.
    pub(crate) int8: Option<Quantised>,
    pub(crate) matrix: &'a DeviceMatrix,
    /// Where each stacked matrix's rows go.
    pub(crate) outputs: &'a [Activation],
    /// `[rows]` of all stacked matrices.
    pub(crate) bias: Option<wgpu::Buffer>,
    pub(crate) store: Store,
    pub(crate) rows: Rows,
    pub(crate) class: Class,
}

/// See [`cortiq_model::Op::Linear`]. With `into`, the only product is added there instead of being stored.
pub(crate) fn linear(
    rec: &mut Recorder<'_>,
    input: Slot,
    parts: &[LinearPart],
    into: Option<Slot>,
) -> Result<(), GpuError> {
    let mut left: Vec<LinearPart> = parts.to_vec();
    while let Some(first) = left.first() {
        let layout = rec.layout(first.weight)?;
        let (mut same, mut others) = (Vec::new(), Vec::new());
        for part in left {
            let fits = same.len() < MAX_OUTPUTS && rec.layout(part.weight)? == layout;
            if fits { same.push(part) } else { others.push(part) }
        }
        let outputs: Vec<Activation> = same.iter().map(|part| rec.activation(into.unwrap_or(part.out))).collect();
        let store = if into.is_some() { Store::Add } else { Store::Set };
        product_of(rec, input, &same, &outputs, store)?;
        left = others;
    }
    Ok(())
}

/// Records `input` times the matrices of `parts`, which have one layout.
pub(super) fn product_of(
    rec: &mut Recorder<'_>,
    input: Slot,
    parts: &[LinearPart],
    outputs: &[Activation],
    store: Store,
) -> Result<(), GpuError> {
    let ids: Vec<MatrixId> = parts.iter().map(|part| part.weight).collect();
    let matrix = rec.matrix(&ids)?;
    let bias = stacked_bias(rec, parts, &matrix)?;
    let int8 = int8_input(rec, input, &matrix)?;
    let (x, class) = (rec.activation(input), rec.class);
    product(rec, &Product { x: &x, int8, matrix: &matrix, outputs, bias, store, rows: Rows::Step, class })
}

/// The biases of stacked matrices in one buffer, zero where there is none.
pub(super) fn stacked_bias(
    rec: &mut Recorder<'_>,
    parts: &[LinearPart],
    matrix: &DeviceMatrix,
) -> Result<Option<wgpu::Buffer>, GpuError> {
    let ids: Vec<Option<VectorId>> = parts.iter().map(|part| part.bias).collect();
    if ids.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut values = Vec::with_capacity(matrix.rows());
    for (id, rows) in ids.iter().zip(&matrix.parts) {
        match id {
            Some(id) => values.extend_from_slice(&rec.program.vectors[id.0]),
            None => values.extend(std::iter::repeat_n(0.0, *rows)),
        }
    }
    rec.gpu.buffer_with("bias", &values).map(Some)
}

/// The int8 copy of a slot for a matrix, when it takes one in this class.
pub(super) fn int8_input(
    rec: &mut Recorder<'_>,
    input: Slot,
    matrix: &Arc<DeviceMatrix>,
) -> Result<Option<Quantised>, GpuError> {
    if !rec.uses_int8(matrix.layout) {
        return Ok(None);
    }
    match &matrix.fields {
        None => rec.quantised(input).map(Some),
        Some(fields) => {
            let (sets, x) = (matrix.parts.len(), rec.activation(input));
            // Its own place beside the plain copy, which may still be needed.
            let buffers = rec.quantised_buffers(input, sets + 1)?;
            quantise(rec, &x, Some(fields), sets, &buffers, Rows::Step)?;
            Ok(Some(buffers))
        }
    }
}

/// Records a product, piece by piece.
pub(crate) fn product(rec: &mut Recorder<'_>, product: &Product<'_>) -> Result<(), GpuError> {
    if product.class == Class::Many {
        gemm(rec, product)?;
        return add_overlay(rec, product);
    }
    for piece in &product.matrix.pieces {
        match &product.int8 {
            Some(int8) if fused::takes_staged(rec, product) => fused::staged(rec, product, piece, int8)?,
            Some(int8) => matvec_int8(rec, product, piece, int8)?,
            None => matvec(rec, product, piece)?,
        }
    }
    Ok(())
}

/// Constants and snippets of the outputs: which stacked matrix a row belongs to and where its sum goes.
pub(super) fn with_outputs(source: Source, product: &Product<'_>, first_row: usize) -> Source {
    const STRIDES: [&str; MAX_OUTPUTS] = ["OUT_STRIDE0", "OUT_STRIDE1", "OUT_STRIDE2", "OUT_STRIDE3"];
    const ENDS: [&str; MAX_OUTPUTS] = ["END0", "END1", "END2", "END3"];
    let outputs = match product.outputs.len() {
        1 => wgsl!("lib/out1.wgsl"),
        2 => wgsl!("lib/out2.wgsl"),
        3 => wgsl!("lib/out3.wgsl"),
        _ => wgsl!("lib/out4.wgsl"),
    };
    let bias = if product.bias.is_some() { wgsl!("lib/bias.wgsl") } else { wgsl!("lib/no_bias.wgsl") };
    let mut source = source.with("FIRST_ROW", first_row).with("ADD", product.store == Store::Add);
    let mut end = 0;
    for (i, (output, rows)) in product.outputs.iter().zip(&product.matrix.parts).enumerate() {
        end += rows;
        source = source.with(STRIDES[i], output.stride).with(ENDS[i], end);
    }
    let source = source.with("LOGITS", product.rows == Rows::Logits).with("X_STRIDE4", product.x.stride / 4);
    source.part(outputs).part(bias).part(wgsl!("lib/live.wgsl")).part(wgsl!("lib/x4.wgsl"))
}

/// Bindings of the outputs and the bias.
pub(super) fn output_binds<'a>(product: &'a Product<'_>) -> Vec<Bind<'a>> {
    let mut binds: Vec<Bind<'_>> =
        product.outputs.iter().enumerate().map(|(i, out)| Bind::write(2 + i as u32, &out.buffer)).collect();
    binds.extend(product.bias.as_ref().map(|bias| Bind::read(6, bias)));
    binds
}

/// Adds the overlay of a row to a matrix-vector product, or nothing.
pub(super) fn with_overlay(source: Source, layout: Layout) -> Source {
    source.part(if layout.has_overlay() { wgsl!("lib/overlay_dot.wgsl") } else { wgsl!("lib/no_overlay.wgsl") })
}

/// Bindings of the weights.
pub(super) fn weight_binds<'a>(product: &'a Product<'_>, piece: &'a Piece) -> Vec<Bind<'a>> {
    let mut binds: Vec<Bind<'_>> = piece.binds().collect();
    binds.extend(product.matrix.fields.as_ref().map(|fields| Bind::read(9, fields)));
    binds
}

/// Matrix-vector product with f32 activations: reads the piece once per [`Class::tokens`] tokens.
fn matvec(rec: &mut Recorder<'_>, product: &Product<'_>, piece: &Piece) -> Result<(), GpuError> {
    let (layout, cols, tokens) = (product.matrix.layout, product.matrix.cols, product.class.tokens());
    let source = source(rec, "matvec", wgsl!("matvec.wgsl"), WORKGROUP)
        .with("ROWS", piece.rows)
        .with("TOKENS", tokens)
        .part(wgsl!("lib/half.wgsl"));
    let source = with_outputs(layout.with_weights(source, cols), product, piece.first_row);
    let source = with_overlay(source, layout);
    let mut binds = vec![Bind::read(1, &product.x.buffer)];
    binds.extend(output_binds(product));
    binds.extend(weight_binds(product, piece));
    let per_group = (WORKGROUP / team_size(rec.gpu, WORKGROUP)) as usize;
    let (groups, rows) = (piece.rows.div_ceil(per_group) as u32, product.rows);
    rec.dispatch(&source, &binds, move |size| fold(rows.count(size).div_ceil(tokens), groups))
}

/// Matrix-vector product with int8 activations.
fn matvec_int8(rec: &mut Recorder<'_>, product: &Product<'_>, piece: &Piece, int8: &Quantised) -> Result<(), GpuError> {
    let (layout, cols, tokens) = (product.matrix.layout, product.matrix.cols, product.class.tokens());
    let source = source(rec, "matvec_int8", wgsl!("matvec_int8.wgsl"), WORKGROUP)
        .with("ROWS", piece.rows)
        .with("TOKENS", tokens)
        .with("SET_ROWS", int8.rows)
        .with("SETS", product.matrix.fields.is_some())
        .with("X_REST", int8.rest(padded(cols) / 32))
        .part(wgsl!("lib/half.wgsl"))
        .part(wgsl!("lib/x_codes.wgsl"))
        .part(int8.per_value.group());
    let source = layout.with_dot(layout.with_weights(int8.per_value.constant(source), cols));
    let source = with_overlay(with_outputs(source, product, piece.first_row), layout);
    let mut binds = vec![Bind::read(7, &int8.codes), Bind::read(8, &int8.scales)];
    if layout.has_overlay() {
        binds.push(Bind::read(1, &product.x.buffer));
    }
    binds.extend(output_binds(product));
    binds.extend(weight_binds(product, piece));
    let per_group = (WORKGROUP / team_size(rec.gpu, WORKGROUP)) as usize;
    let (groups, rows) = (piece.rows.div_ceil(per_group) as u32, product.rows);
    rec.dispatch(&source, &binds, move |size| fold(rows.count(size).div_ceil(tokens), groups))
}

/// Adds what the overlay contributes to finished sums, if there is one.
pub(crate) fn add_overlay(rec: &mut Recorder<'_>, product: &Product<'_>) -> Result<(), GpuError> {
    if !product.matrix.layout.has_overlay() {
        return Ok(());
    }
    product.matrix.pieces.iter().try_for_each(|piece| overlay(rec, product, piece))
}

/// The part of [`add_overlay`] that one piece has.
fn overlay(rec: &mut Recorder<'_>, product: &Product<'_>, piece: &Piece) -> Result<(), GpuError> {
    let source = source(rec, "overlay", wgsl!("overlay.wgsl"), WORKGROUP)
        .with("ROWS", piece.rows)
        .part(wgsl!("weights/overlay.wgsl"));
    let adding = Product { store: Store::Add, bias: None, int8: None, outputs: product.outputs, ..*product };
    let source = with_overlay(with_outputs(source, &adding, piece.first_row), product.matrix.layout);
    let mut binds = vec![Bind::read(1, &product.x.buffer)];
    binds.extend(output_binds(&adding));
    binds.extend(piece.overlay_binds());
    let per_group = (WORKGROUP / team_size(rec.gpu, WORKGROUP)) as usize;
    let (groups, rows) = (piece.rows.div_ceil(per_group) as u32, product.rows);
    rec.dispatch(&source, &binds, move |size| fold(rows.count(size), groups))
}
