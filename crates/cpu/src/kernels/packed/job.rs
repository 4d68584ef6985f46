//! What one call of the kernels computes.

use cortiq_quant::MatrixView;

use super::super::tile::LANES;
use super::{InputRows, takes};

/// `out[t * rows + r] = x[t] · weights[first_row + r]`.
pub(crate) struct Job<'a> {
    /// First row of the matrix.
    pub(crate) first_row: usize,
    /// Rows of the matrix.
    pub(crate) rows: usize,
    /// Inputs.
    pub(crate) x: InputRows<'a>,
    /// `[x.len(), rows]`.
    pub(crate) out: &'a mut [f32],
    /// Room for unpacked rows: at least [`Job::scratch`] floats, used for several inputs.
    pub(crate) scratch: &'a mut [f32],
}

impl Job<'_> {
    /// Floats that `rows` unpacked rows of `cols` columns take: codes, scales in whole vectors, and offsets.
    pub(crate) fn scratch(rows: usize, cols: usize) -> usize {
        rows * (cols / 4 + (cols / 32).next_multiple_of(LANES) + 1)
    }

    pub(super) fn check(&self, view: &MatrixView<'_>) {
        assert!(takes(view) && self.x.cols() == view.cols(), "a matrix that the kernels take, and inputs as wide");
        assert!(self.first_row + self.rows <= view.rows(), "rows inside the matrix");
        assert!(self.out.len() == self.x.len() * self.rows, "room for the products");
        assert!(self.x.len() == 1 || self.scratch.len() >= Self::scratch(self.rows, view.cols()), "scratch");
    }
}
