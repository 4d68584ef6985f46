//! Matrices times the batch.
//!
//! Bytes read: every matrix once per step, in its own dtype. A grain of rows is decoded to f32 in the worker's
//! cache and multiplied with all inputs before the next one, so a weight is unpacked once however many tokens
//! there are.

use cortiq_model::{HeadOp, LinearPart, ModelError, Slot};
use cortiq_quant::MatrixView;
use smallvec::SmallVec;

use crate::executor::{Model, Run};
use crate::kernels::Isa;
use crate::pool::{ColumnTile, Columns, Pool, Scratch};

/// Weight rows that are decoded together: as many as one register tile uses.
pub(super) const TILE_ROWS: usize = 4;

/// Tiles that a worker takes at a time.
pub(super) const GRAIN_TILES: usize = 8;

/// One matrix of a dispatch: `out[t, r] = x[t] · view[r] + bias[r]`.
pub(super) struct Weight<'a> {
    pub(super) view: &'a MatrixView<'a>,
    pub(super) bias: Option<&'a [f32]>,
}

impl<'a> Weight<'a> {
    fn new(model: &'a Model, part: &LinearPart) -> Self {
        let bias = part.bias.map(|id| model.program.vectors[id.0].as_slice());
        Self { view: model.matrix(part.weight), bias }
    }

    /// The rows of one tile, for all inputs.
    pub(super) fn run_tile(&self, isa: Isa, scratch: &mut Scratch, x: &[f32], mut tile: ColumnTile<'_>) {
        let (cols, count, first) = (self.view.cols(), tile.count, tile.first);
        let n = x.len() / cols;
        let buffer = Scratch::sized(&mut scratch.rows, count * (cols + n));
        let (weights, sums) = buffer.split_at_mut(count * cols);
        decode_rows(self.view, first, weights);
        isa.dot_rows(weights, x, cols, sums);
        for (t, sums) in sums.chunks_exact(count).enumerate() {
            let out = tile.row(t);
            out.copy_from_slice(sums);
            if let Some(bias) = self.bias {
                for (y, b) in out.iter_mut().zip(&bias[first..]) {
                    *y += b;
                }
            }
        }
    }
}

/// Decodes the rows from `first` on that `out` has room for.
pub(super) fn decode_rows(view: &MatrixView<'_>, first: usize, out: &mut [f32]) {
    for (i, row) in out.chunks_exact_mut(view.cols()).enumerate() {
        view.decode_row(first + i, row);
    }
}

/// Several matrices times one input, as one dispatch.
pub(super) fn matmul(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    weights: &[Weight<'_>],
    outs: &[Columns<'_>],
) -> Result<(), ModelError> {
    pool.run_columns(outs, TILE_ROWS, GRAIN_TILES, |scratch, index, tile| {
        weights[index].run_tile(isa, scratch, x, tile);
    })?;
    Ok(())
}

/// All parts of a linear operation in one dispatch.
pub(crate) fn linear(model: &Model, run: &mut Run, input: Slot, parts: &[LinearPart]) -> Result<(), ModelError> {
    let Run { slots, pool, .. } = run;
    let weights: SmallVec<[Weight<'_>; 4]> = parts.iter().map(|part| Weight::new(model, part)).collect();
    let mut outs: SmallVec<[Vec<f32>; 4]> = parts.iter().map(|part| std::mem::take(&mut slots[part.out.0])).collect();
    let columns: SmallVec<[Columns<'_>; 4]> =
        outs.iter_mut().zip(&weights).map(|(out, weight)| Columns::new(out, weight.view.rows())).collect();
    let result = matmul(pool, model.isa, &slots[input.0], &weights, &columns);
    drop(columns);
    for (out, part) in outs.into_iter().zip(parts) {
        slots[part.out.0] = out;
    }
    result
}

/// Logits of the chosen rows, into `run.logits`.
pub(crate) fn head(model: &Model, run: &mut Run, rows: &[usize], op: &HeadOp) -> Result<(), ModelError> {
    let Run { slots, head_input, logits, pool, .. } = run;
    let width = model.width(op.input);
    head_input.clear();
    for &row in rows {
        head_input.extend_from_slice(&slots[op.input.0][row * width..(row + 1) * width]);
    }
    logits.resize(rows.len() * model.program.vocab_size, 0.0);
    let weight = Weight { view: model.matrix(op.weight), bias: None };
    let columns = Columns::new(logits, model.program.vocab_size);
    matmul(pool, model.isa, head_input, &[weight], &[columns])?;
    if let Some(cap) = op.softcap {
        logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}
