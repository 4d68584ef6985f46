//! Kernels driven by hand, for the micro-benchmark: one matrix of random weights on one thread.

use cortiq_cmf::Dtype;
use cortiq_model::ModelError;
use cortiq_quant::{MatrixView, random_payload};

use crate::Isa;
use crate::kernels::{InputBits, Inputs, Job, takes};
use crate::pool::Pool;

/// Rows that are multiplied at a time.
const ROWS: usize = 32;

self_cell::self_cell!(
    /// A payload and its checked view.
    struct Matrix {
        owner: Vec<u8>,
        #[covariant]
        dependent: MatrixView,
    }
);

/// A matrix, inputs and room for their products.
pub struct Products {
    matrix: Matrix,
    x: Vec<f32>,
    isa: Isa,
    pool: Pool,
    inputs: Inputs,
    out: Vec<f32>,
    scratch: Vec<f32>,
}

impl Products {
    /// Random weights `[rows, cols]` of a quantised dtype, and `tokens` inputs. Fails where the dtype has no such matrix.
    pub fn new(isa: Isa, dtype: Dtype, rows: usize, cols: usize, tokens: usize) -> Result<Self, ModelError> {
        let failed = |error: &dyn std::fmt::Display| ModelError::Executor(error.to_string());
        let payload = random_payload(dtype, rows, cols, 1).map_err(|error| failed(&error))?;
        let matrix = Matrix::try_new(payload, |payload| MatrixView::new(dtype, payload, rows, cols))
            .map_err(|error| failed(&error))?;
        if !takes(matrix.borrow_dependent()) {
            return Err(ModelError::Executor(format!("no kernels for {} of {cols} columns", dtype.name())));
        }
        let x = (0..tokens * cols).map(|i| (i as f32 * 0.37).sin()).collect();
        let pool = Pool::new(1).map_err(|error| failed(&error))?;
        let (out, scratch) = (vec![0.0; tokens * ROWS], vec![0.0; Job::scratch(ROWS, cols)]);
        Ok(Self { matrix, x, isa, pool, inputs: Inputs::default(), out, scratch })
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> usize {
        self.matrix.borrow_owner().len()
    }

    /// Quantises the inputs and computes all products; the sum of the last ones.
    pub fn run(&mut self) -> Result<f32, ModelError> {
        let view = self.matrix.borrow_dependent();
        self.inputs.clear();
        let index = self.inputs.prepare(&mut self.pool, self.isa, view, &self.x, InputBits::Sixteen)?;
        let (x, tokens) = (self.inputs.rows(index), self.x.len() / view.cols());
        let mut sum = 0.0;
        for first_row in (0..view.rows()).step_by(ROWS) {
            let rows = ROWS.min(view.rows() - first_row);
            let out = &mut self.out[..tokens * rows];
            self.isa.packed_products(view, Job { first_row, rows, x, out, scratch: &mut self.scratch });
            sum = out.iter().sum();
        }
        Ok(sum)
    }
}
