//! A checked, borrowed matrix of any dtype.

use cortiq_cmf::Dtype;
use rayon::prelude::*;

use crate::common::element_count;
use crate::error::QuantError;
use crate::{Bf16, F16, F32, Q1, Q1s, Q1t, Q4Block, Q4Tiled, Q8_2f, Q8Row, Vbit};

/// A matrix `[rows, cols]` over payload bytes. Construction checks everything once, so that reading rows cannot fail.
///
/// Construction costs O(rows) for `vbit`, `vbit_ro` and O(rows + entries) for `q1s`, `q1t`, nothing for the others:
/// build a view once and keep it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MatrixView<'a> {
    /// Plain f32.
    F32(F32<'a>),
    /// Plain f16.
    F16(F16<'a>),
    /// Plain bf16.
    Bf16(Bf16<'a>),
    /// 8 bits, row scales.
    Q8Row(Q8Row<'a>),
    /// 8 bits, row and column scales.
    Q8_2f(Q8_2f<'a>),
    /// 4 bits, scales apart.
    Q4Block(Q4Block<'a>),
    /// 4 bits, tiles.
    Q4Tiled(Q4Tiled<'a>),
    /// 3 to 8 bits by row, with or without the offset table.
    Vbit(Vbit<'a>),
    /// Signs.
    Q1(Q1<'a>),
    /// Signs with f16 outliers.
    Q1s(Q1s<'a>),
    /// Ternary with f16 outliers.
    Q1t(Q1t<'a>),
}

/// Runs one expression on whatever view the enum holds.
macro_rules! each {
    ($self:expr, $view:ident => $body:expr) => {
        match $self {
            MatrixView::F32($view) => $body,
            MatrixView::F16($view) => $body,
            MatrixView::Bf16($view) => $body,
            MatrixView::Q8Row($view) => $body,
            MatrixView::Q8_2f($view) => $body,
            MatrixView::Q4Block($view) => $body,
            MatrixView::Q4Tiled($view) => $body,
            MatrixView::Vbit($view) => $body,
            MatrixView::Q1($view) => $body,
            MatrixView::Q1s($view) => $body,
            MatrixView::Q1t($view) => $body,
        }
    };
}

impl<'a> MatrixView<'a> {
    /// Checks `payload` as a `[rows, cols]` matrix of `dtype`.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::Shape`], [`QuantError::TooLarge`] for an impossible shape,
    /// [`QuantError::PayloadLength`] for a wrong length, [`QuantError::Corrupt`] for broken contents.
    pub fn new(dtype: Dtype, payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        Ok(match dtype {
            Dtype::F32 => Self::F32(F32::new(payload, rows, cols)?),
            Dtype::F16 => Self::F16(F16::new(payload, rows, cols)?),
            Dtype::Bf16 => Self::Bf16(Bf16::new(payload, rows, cols)?),
            Dtype::Q8Row => Self::Q8Row(Q8Row::new(payload, rows, cols)?),
            Dtype::Q8_2f => Self::Q8_2f(Q8_2f::new(payload, rows, cols)?),
            Dtype::Q4Block => Self::Q4Block(Q4Block::new(payload, rows, cols)?),
            Dtype::Q4Tiled => Self::Q4Tiled(Q4Tiled::new(payload, rows, cols)?),
            Dtype::Vbit => Self::Vbit(Vbit::new_plain(payload, rows, cols)?),
            Dtype::VbitRo => Self::Vbit(Vbit::new_with_offsets(payload, rows, cols)?),
            Dtype::Q1 => Self::Q1(Q1::new(payload, rows, cols)?),
            Dtype::Q1s => Self::Q1s(Q1s::new(payload, rows, cols)?),
            Dtype::Q1t => Self::Q1t(Q1t::new(payload, rows, cols)?),
        })
    }

    /// Number of rows (output features).
    pub fn rows(&self) -> usize {
        each!(self, view => view.rows())
    }

    /// Number of columns (input features).
    pub fn cols(&self) -> usize {
        each!(self, view => view.cols())
    }

    /// The dtype of the payload.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::F16(_) => Dtype::F16,
            Self::Bf16(_) => Dtype::Bf16,
            Self::Q8Row(_) => Dtype::Q8Row,
            Self::Q8_2f(_) => Dtype::Q8_2f,
            Self::Q4Block(_) => Dtype::Q4Block,
            Self::Q4Tiled(_) => Dtype::Q4Tiled,
            Self::Vbit(view) if view.has_offset_table() => Dtype::VbitRo,
            Self::Vbit(_) => Dtype::Vbit,
            Self::Q1(_) => Dtype::Q1,
            Self::Q1s(_) => Dtype::Q1s,
            Self::Q1t(_) => Dtype::Q1t,
        }
    }

    /// Decodes one row to f32.
    ///
    /// # Panics
    /// Like slice indexing: when `row >= rows()` or `out.len() != cols()`. Never because of the payload.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols(), "output length is the column count");
        self.decode_groups(row, 0, out);
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when `row >= rows()` or the run ends after the row's end. Never because of the payload.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        each!(self, view => view.decode_groups(row, first_group, out));
    }
}

/// Decodes a whole payload to a row-major `[rows, cols]` matrix, on all threads of the current rayon pool.
///
/// # Errors
/// Those of [`MatrixView::new`].
pub fn decode(dtype: Dtype, payload: &[u8], rows: usize, cols: usize) -> Result<Vec<f32>, QuantError> {
    let view = MatrixView::new(dtype, payload, rows, cols)?;
    let mut out = vec![0.0; element_count(dtype.name(), rows, cols)?];
    out.par_chunks_mut(cols).enumerate().for_each(|(row, out)| view.decode_row(row, out));
    Ok(out)
}
