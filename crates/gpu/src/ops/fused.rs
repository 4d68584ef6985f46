//! Decoding kernels that norm and pack their own input: the two products of a layer that follow a norm, and the
//! product of the attention's output, without a dispatch before them.

mod mixed;

pub(crate) use mixed::{mixed_linear, takes_mixed};

use cortiq_model::{GatedFfnOp, LinearPart, MatrixId, Slot, VectorId};

use super::ffn::{gated_product, with_function};
use super::linear::{Product, Store, output_binds, product_of, stacked_bias, weight_binds, with_outputs};
use super::{Codes, source};
use crate::kernel::{Bind, fold, team_size};
use crate::plan::{Activation, Class, Quantised, Recorder, Rows};
use crate::shader::{Source, wgsl};
use crate::slots::padded;
use crate::weights::{DeviceMatrix, Layout, Piece};
use crate::{Caps, GpuError};

/// Quads of columns that a thread packs, at most.
const QUADS_PER_THREAD: usize = 4;

/// An input row and the norm that it goes through first.
pub(crate) struct FusedInput {
    pub(crate) x: Activation,
    pub(crate) norm: Option<(VectorId, f64)>,
}

/// Whether [`fused_linear`] takes these matrices.
pub(crate) fn takes_linear(rec: &Recorder<'_>, ids: &[MatrixId]) -> bool {
    let Some(layout) = ids.first().and_then(|id| rec.layout(*id).ok()) else { return false };
    let cols = ids.first().map_or(0, |id| rec.program.matrices[id.0].cols);
    rec.class == Class::One
        && rec.uses_int8(layout)
        && !layout.has_overlay()
        && layout != Layout::Q8Field
        && cols <= most_cols(rec.gpu.caps(), rec.codes)
        && ids.len() <= 4
        && ids.iter().all(|id| rec.layout(*id).is_ok_and(|other| other == layout))
}

/// Whether [`fused_gated`] takes this network.
pub(crate) fn takes_gated(rec: &Recorder<'_>, op: &GatedFfnOp) -> bool {
    let neurons = rec.program.matrices[op.gate.weight.0].rows;
    let down = rec
        .layout(op.down.weight)
        .is_ok_and(|layout| rec.uses_int8(layout) && !layout.has_overlay() && layout != Layout::Q8Field);
    takes_linear(rec, &[op.gate.weight, op.up.weight])
        && down
        && neurons.is_multiple_of(32)
        && op.gate.bias.is_none()
        && op.up.bias.is_none()
}

/// Constants and snippets of the input.
fn with_input(source: Source, input: &FusedInput) -> Source {
    let (eps, weight) = match input.norm {
        Some((_, eps)) => (eps, wgsl!("lib/norm_weight.wgsl")),
        None => (0.0, wgsl!("lib/no_norm_weight.wgsl")),
    };
    source
        .with("WIDTH", input.x.width)
        .with("EPS", eps as f32)
        .part(weight)
        .part(wgsl!("lib/octet.wgsl"))
        .part(wgsl!("lib/x_shared.wgsl"))
}

/// Adds the int8 copy in workgroup memory and the products of rows with it: four neighbouring groups at a time for signs
/// with one code per activation, where that leaves at most half of a team idle.
fn with_products(rec: &Recorder<'_>, source: Source, matrix: &DeviceMatrix, codes: Codes, threads: u32) -> Source {
    let (blocks, team) = (padded(matrix.cols) / 32, team_size(rec.gpu, threads) as usize);
    let source = codes.constant(source);
    let wide = matrix.layout == Layout::Q1 && codes == Codes::One;
    if wide && blocks.is_multiple_of(4) && blocks >= 2 * team {
        source.part(wgsl!("lib/x_words4.wgsl")).part(wgsl!("dot/q1_wide.wgsl"))
    } else {
        source.part(wgsl!("lib/x_words.wgsl")).part(wgsl!("lib/dot_x.wgsl")).part(codes.group())
    }
}

/// Threads of a workgroup: many, because each workgroup packs the input for itself.
const THREADS: u32 = 512;

/// Columns of the widest int8 row that fits in workgroup memory, with what teams need beside it.
fn most_in_memory(caps: &Caps, codes: Codes) -> usize {
    const TEAMS: usize = 4096;
    // 32 codes, their scale, and scale times sum.
    let group = 40 * codes.count();
    (caps.workgroup_memory as usize).saturating_sub(TEAMS) / group * 32
}

/// Columns of the widest row that [`fused_linear`] and [`fused_gated`] pack for themselves.
pub(crate) fn most_cols(caps: &Caps, codes: Codes) -> usize {
    most_in_memory(caps, codes).min(4 * QUADS_PER_THREAD * caps.threads(THREADS) as usize)
}

/// Threads of a workgroup on this device.
fn threads(rec: &Recorder<'_>) -> u32 {
    rec.gpu.caps().threads(THREADS)
}

/// Whether [`staged`] takes a product.
pub(super) fn takes_staged(rec: &Recorder<'_>, product: &Product<'_>) -> bool {
    let matrix = product.matrix;
    product.class == Class::One
        && !matrix.layout.has_overlay()
        && product
            .int8
            .as_ref()
            .is_some_and(|int8| padded(matrix.cols) <= most_in_memory(rec.gpu.caps(), int8.per_value))
        && (matrix.fields.is_none() || matrix.parts.len() == 1)
}

/// Product of one token with an int8 copy that was made before, brought to workgroup memory.
pub(super) fn staged(
    rec: &mut Recorder<'_>,
    product: &Product<'_>,
    piece: &Piece,
    int8: &Quantised,
) -> Result<(), GpuError> {
    let source = matvec_source(rec, "matvec_staged", product, piece, int8.per_value, |source| {
        source
            .with("X_REST", int8.rest(product.x.stride / 32))
            .part(wgsl!("lib/x_copy.wgsl"))
            .part(wgsl!("lib/no_float_rows.wgsl"))
    });
    let mut binds = vec![Bind::read(7, &int8.codes), Bind::read(8, &int8.scales)];
    binds.extend(output_binds(product));
    binds.extend(weight_binds(product, piece));
    let (groups, rows) = (matvec_groups(rec, piece), product.rows);
    rec.dispatch(&source, &binds, move |size| if rows.count(size) > 0 { fold(1, groups) } else { [0; 3] })
}

/// The source of `matvec_fused.wgsl` with a way to prepare its input.
fn matvec_source(
    rec: &Recorder<'_>,
    name: &'static str,
    product: &Product<'_>,
    piece: &Piece,
    codes: Codes,
    input: impl FnOnce(Source) -> Source,
) -> Source {
    let (layout, cols) = (product.matrix.layout, product.matrix.cols);
    let source = source(rec, name, wgsl!("matvec_fused.wgsl"), threads(rec))
        .with("ROWS", piece.rows)
        .part(wgsl!("lib/half.wgsl"));
    let source = with_products(rec, source, product.matrix, codes, threads(rec));
    let source = layout.with_dot(layout.with_weights(input(source), cols));
    with_outputs(source, product, piece.first_row)
}

/// Workgroups of `matvec_fused.wgsl`.
fn matvec_groups(rec: &Recorder<'_>, piece: &Piece) -> u32 {
    let per_group = threads(rec) / team_size(rec.gpu, threads(rec));
    (piece.rows as u32).div_ceil(per_group)
}

/// [`super::linear`] for one token, with the norm before it.
pub(crate) fn fused_linear(
    rec: &mut Recorder<'_>,
    input: &FusedInput,
    parts: &[LinearPart],
    into: Option<Slot>,
) -> Result<(), GpuError> {
    let ids: Vec<MatrixId> = parts.iter().map(|part| part.weight).collect();
    let matrix = rec.matrix(&ids)?;
    let bias = stacked_bias(rec, parts, &matrix)?;
    let outputs: Vec<Activation> = parts.iter().map(|part| rec.activation(into.unwrap_or(part.out))).collect();
    let store = if into.is_some() { Store::Add } else { Store::Set };
    let (x, rows, class) = (&input.x, Rows::Step, rec.class);
    let product = Product { x, int8: None, matrix: &matrix, outputs: &outputs, bias, store, rows, class };
    let norm = norm_weight(rec, input)?;
    let name = if input.norm.is_some() { "matvec_normed" } else { "matvec_packed" };
    for piece in &matrix.pieces {
        let source = matvec_source(rec, name, &product, piece, rec.codes, |source| {
            with_input(source, input).part(wgsl!("lib/no_float_rows.wgsl"))
        });
        let mut binds = vec![Bind::read(1, &x.buffer)];
        binds.extend(norm.as_ref().map(|weight| Bind::read(7, weight)));
        binds.extend(output_binds(&product));
        binds.extend(piece.binds());
        let groups = matvec_groups(rec, piece);
        rec.dispatch(&source, &binds, move |_| fold(1, groups))?;
    }
    Ok(())
}

/// [`super::gated_ffn`] for one token, with the norm before it.
pub(crate) fn fused_gated(
    rec: &mut Recorder<'_>,
    input: &FusedInput,
    op: &GatedFfnOp,
    into: Option<Slot>,
) -> Result<(), GpuError> {
    let matrix = rec.matrix(&[op.gate.weight, op.up.weight])?;
    if let [piece] = matrix.pieces.as_slice() {
        let mask = op.neuron_mask.map(|mask| rec.vector(mask)).transpose()?;
        let norm = norm_weight(rec, input)?;
        let neurons = matrix.rows() / 2;
        // At most one neuron per team.
        let threads = threads(rec).min(32 * team_size(rec.gpu, threads(rec)));
        let out = rec.packed_by_kernel(op.gate.out)?;
        let source = source(rec, "gated_fused", wgsl!("gated_fused.wgsl"), threads)
            .with("NEURONS", neurons)
            .with("PACKED_REST", out.rest(padded(neurons) / 32))
            .part(wgsl!("lib/half.wgsl"));
        let source = with_products(rec, source, &matrix, out.per_value, threads);
        let source = with_function(with_input(source, input), op.activation)
            .part(if mask.is_some() { wgsl!("lib/mask.wgsl") } else { wgsl!("lib/no_mask.wgsl") })
            .part(wgsl!("lib/x4.wgsl"));
        let source = matrix.layout.with_dot(matrix.layout.with_weights(source, matrix.cols));
        let mut binds = vec![Bind::read(1, &input.x.buffer), Bind::write(2, &out.codes), Bind::write(4, &out.scales)];
        binds.extend(mask.as_ref().map(|mask| Bind::read(3, mask)));
        binds.extend(norm.as_ref().map(|weight| Bind::read(7, weight)));
        binds.extend(piece.binds());
        let groups = (neurons / 32) as u32;
        rec.dispatch(&source, &binds, move |_| fold(1, groups))?;
    } else {
        // A neuron's two rows may be in different pieces.
        fused_linear(rec, input, &[op.gate, op.up], None)?;
        gated_product(rec, op)?;
    }
    let out = rec.activation(into.unwrap_or(op.down.out));
    let store = if into.is_some() { Store::Add } else { Store::Set };
    product_of(rec, op.gate.out, &[op.down], &[out], store)
}

fn norm_weight(rec: &mut Recorder<'_>, input: &FusedInput) -> Result<Option<wgpu::Buffer>, GpuError> {
    input.norm.map(|(weight, _)| rec.vector(weight)).transpose()
}
