//! `out = table[token] * scale`.

use cortiq_model::{MatrixId, Slot};

use super::source;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, fold};
use crate::plan::Recorder;
use crate::shader::wgsl;

/// Looks up the rows of a table of any layout, piece by piece.
pub(crate) fn embed(rec: &mut Recorder<'_>, table: MatrixId, scale: f32, out: Slot) -> Result<(), GpuError> {
    let matrix = rec.matrix(&[table])?;
    let out = rec.activation(out);
    for piece in &matrix.pieces {
        let body = if matrix.layout.has_overlay() { wgsl!("embed_overlay.wgsl") } else { wgsl!("embed.wgsl") };
        let source = source(rec, "embed", body, WORKGROUP)
            .with("FIRST_ROW", piece.first_row)
            .with("ROWS", piece.rows)
            .with("COLS", matrix.cols)
            .with("OUT_STRIDE", out.stride)
            .with("SCALE", scale)
            .part(wgsl!("lib/half.wgsl"))
            .part(wgsl!("lib/one_part.wgsl"));
        let source = matrix.layout.with_weights(source, matrix.cols);
        let mut binds = vec![Bind::write(1, &out.buffer)];
        binds.extend(piece.binds());
        binds.extend(matrix.fields.as_ref().map(|fields| Bind::read(9, fields)));
        rec.dispatch(&source, &binds, |size| fold(1, size.rows))?;
    }
    Ok(())
}
