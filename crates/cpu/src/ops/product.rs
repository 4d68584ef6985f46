//! Products of some rows of a matrix with some rows of activations, which all operations with matrices share.
//!
//! In the fast mode quantised matrices whose rows are whole groups of 32 are multiplied as they are with quantised inputs
//! (`kernels/packed`). All others are decoded to f32, a few rows at a time in the worker's cache, and multiplied with
//! all inputs before the next, so a weight is unpacked once however many tokens there are.

use std::ops::Range;

use cortiq_model::ModelError;
use cortiq_quant::MatrixView;

use crate::kernels::{InputBits, InputRows, Inputs, Isa, Job, takes};
use crate::pool::Pool;

/// Weight rows that are decoded together: as many as one register tile uses.
const DECODED_ROWS: usize = 4;

/// Rows that a matrix is multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// `[tokens, view.cols()]`.
    pub(super) x: &'a [f32],
    /// The same, quantised; none when the matrix is multiplied with f32.
    pub(super) packed: Option<InputRows<'a>>,
}

/// The index of `x` among the quantised rows; none when the matrix is multiplied with f32.
pub(super) fn prepare(
    pool: &mut Pool,
    isa: Isa,
    inputs: &mut Inputs,
    view: &MatrixView<'_>,
    x: &[f32],
    width: Option<InputBits>,
) -> Result<Option<usize>, ModelError> {
    match width {
        Some(width) if takes(view) => Ok(Some(inputs.prepare(pool, isa, view, x, width)?)),
        _ => Ok(None),
    }
}

/// A matrix and what it is multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) isa: Isa,
    pub(super) view: &'a MatrixView<'a>,
    pub(super) source: Source<'a>,
}

impl Product<'_> {
    /// Floats of scratch that [`Product::run`] wants for `rows` rows of the matrix and `n` tokens.
    pub(super) fn scratch(&self, rows: usize, n: usize) -> usize {
        match self.source.packed {
            Some(_) => Job::scratch(rows, self.view.cols()),
            None => DECODED_ROWS * (self.view.cols() + n),
        }
    }

    /// `sums[t * rows.len() + r] = x[tokens.start + t] · view[rows.start + r]`.
    pub(super) fn run(&self, rows: Range<usize>, tokens: Range<usize>, sums: &mut [f32], scratch: &mut [f32]) {
        if let Some(x) = self.source.packed {
            let x = x.range(tokens.start, tokens.len());
            let job = Job { first_row: rows.start, rows: rows.len(), x, out: sums, scratch };
            return self.isa.packed_products(self.view, job);
        }
        let (cols, count) = (self.view.cols(), rows.len());
        let x = &self.source.x[tokens.start * cols..tokens.end * cols];
        for first in (0..count).step_by(DECODED_ROWS) {
            let together = DECODED_ROWS.min(count - first);
            let (weights, rest) = scratch.split_at_mut(together * cols);
            decode_rows(self.view, rows.start + first, weights);
            let part = &mut rest[..together * tokens.len()];
            self.isa.dot_rows(weights, x, cols, part);
            for (part, sums) in part.chunks_exact(together).zip(sums.chunks_exact_mut(count)) {
                sums[first..first + together].copy_from_slice(part);
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
