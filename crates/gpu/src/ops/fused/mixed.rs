//! Products of one token whose matrices have two layouts, an int8 one and one of floats, after one norm: the
//! projections of a gated delta net, whose two narrow ones stay in the source's floats. One dispatch, without one for
//! the norm before it.

use cortiq_model::LinearPart;

use super::{FusedInput, matvec_groups, matvec_source, norm_weight, takes_linear, with_input};
use crate::GpuError;
use crate::kernel::{Bind, fold};
use crate::ops::linear::{Product, Store, output_binds};
use crate::plan::{Activation, Recorder, Rows, weights_of};
use crate::shader::{Source, wgsl};
use crate::weights::{DeviceMatrix, Layout};

/// Most rows of floats.
const MAX_FLOAT_ROWS: usize = 256;

/// Rows of floats that a workgroup works on.
const ROWS_PER_GROUP: usize = 4;

/// Binding of the floats, behind the planes of every layout.
const FLOATS: u32 = 14;

/// The parts of a product by layout.
struct Split {
    int8: Vec<LinearPart>,
    floats: Vec<LinearPart>,
}

impl Split {
    fn of(rec: &Recorder<'_>, parts: &[LinearPart]) -> Self {
        let is_float = |part: &LinearPart| rec.layout(part.weight).is_ok_and(|layout| float_snippet(layout).is_some());
        let (floats, int8) = parts.iter().copied().partition(is_float);
        Self { int8, floats }
    }
}

/// Declaration of float rows beside those of another layout.
fn float_snippet(layout: Layout) -> Option<&'static str> {
    match layout {
        Layout::F32 => Some(wgsl!("lib/float_f32.wgsl")),
        Layout::F16 => Some(wgsl!("lib/float_f16.wgsl")),
        Layout::Bf16 => Some(wgsl!("lib/float_bf16.wgsl")),
        _ => None,
    }
}

/// Whether [`mixed_linear`] takes these matrices.
pub(crate) fn takes_mixed(rec: &Recorder<'_>, parts: &[LinearPart]) -> bool {
    let Split { int8, floats } = Split::of(rec, parts);
    let Some(layout) = floats.first().and_then(|part| rec.layout(part.weight).ok()) else { return false };
    let rows: usize = floats.iter().map(|part| rec.program.matrices[part.weight.0].rows).sum();
    takes_linear(rec, &weights_of(&int8))
        && parts.len() <= 4
        && rows <= MAX_FLOAT_ROWS
        && floats.iter().all(|part| rec.layout(part.weight).is_ok_and(|other| other == layout))
        && parts.iter().all(|part| part.bias.is_none())
}

/// [`super::fused_linear`] for parts of two layouts.
pub(crate) fn mixed_linear(rec: &mut Recorder<'_>, input: &FusedInput, parts: &[LinearPart]) -> Result<(), GpuError> {
    let Split { int8, floats } = Split::of(rec, parts);
    let (matrix, beside) = (rec.matrix(&weights_of(&int8))?, rec.matrix(&weights_of(&floats))?);
    let (Some(snippet), [float_piece]) = (float_snippet(beside.layout), beside.pieces.as_slice()) else {
        return Err(GpuError::Unsupported(format!("{:?} rows beside {:?} ones", beside.layout, matrix.layout)));
    };
    let outputs: Vec<Activation> = int8.iter().chain(&floats).map(|part| rec.activation(part.out)).collect();
    // The rows of both, one after the other, for the outputs.
    let stacked = DeviceMatrix {
        layout: matrix.layout,
        cols: matrix.cols,
        parts: matrix.parts.iter().chain(&beside.parts).copied().collect(),
        fields: None,
        pieces: Vec::new(),
    };
    let product = Product {
        x: &input.x,
        int8: None,
        matrix: &stacked,
        outputs: &outputs,
        bias: None,
        store: Store::Set,
        rows: Rows::Step,
        class: rec.class,
    };
    let norm = norm_weight(rec, input)?;
    for (i, piece) in matrix.pieces.iter().enumerate() {
        // The first piece's dispatch brings the floats along.
        let float_rows = if i == 0 { beside.rows() } else { 0 };
        let with_floats = |source: Source| {
            let source = with_input(source, input);
            if float_rows == 0 {
                return source.part(wgsl!("lib/no_float_rows.wgsl"));
            }
            let source = source.with("INT8_ROWS", matrix.rows()).with("FLOAT_ROWS", float_rows);
            source.part(snippet).part(wgsl!("lib/float_rows.wgsl"))
        };
        let source = matvec_source(rec, "matvec_mixed", &product, piece, rec.codes, with_floats);
        let mut binds = vec![Bind::read(1, &input.x.buffer)];
        binds.extend(norm.as_ref().map(|weight| Bind::read(7, weight)));
        binds.extend(output_binds(&product));
        binds.extend(piece.binds());
        if float_rows > 0 {
            binds.extend(float_piece.binds_from(FLOATS));
        }
        let groups = matvec_groups(rec, piece) + float_rows.div_ceil(ROWS_PER_GROUP) as u32;
        rec.dispatch(&source, &binds, move |_| fold(1, groups))?;
    }
    Ok(())
}
