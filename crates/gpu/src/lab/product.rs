//! Products of activations with matrices.

use cortiq_model::Program;
use cortiq_quant::MatrixView;

use super::{Bench, Lab, pad_rows};
use crate::kernel::{Dispatch, StepSize};
use crate::ops::{self, Codes, Product, Store, VARIANTS, Variant};
use crate::plan::{Activation, Class, Quantised, Rows};
use crate::slots::padded;
use crate::weights::DeviceMatrix;
use crate::{GpuError, GpuOptions, Precision};

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Row by row with f32 activations.
    Matvec,
    /// Row by row with int8 activations.
    MatvecInt8,
    /// Row by row with int8 activations of two codes per value.
    MatvecTwoCodes,
    /// A variant of the product of many tokens, by name.
    Gemm(&'static str),
}

/// Stacked matrices in device memory.
pub struct Matrices {
    inner: DeviceMatrix,
}

impl Matrices {
    /// Whether [`Kernel::MatvecInt8`] and [`Kernel::MatvecTwoCodes`] take them.
    pub fn takes_int8(&self) -> bool {
        self.inner.layout.takes_int8()
    }
}

/// A product and what happens to its results.
#[derive(Clone, Copy, Debug)]
pub struct ProductCase<'a> {
    /// How.
    pub kernel: Kernel,
    /// `[tokens, cols]`.
    pub x: &'a [f32],
    /// Tokens.
    pub tokens: usize,
    /// `[rows]` of all stacked matrices.
    pub bias: Option<&'a [f32]>,
    /// Whether results are added to outputs, which are then all 1 before.
    pub add: bool,
}

/// Buffers and dispatches of a product.
struct Recorded {
    dispatches: Vec<Dispatch>,
    outputs: Vec<Activation>,
    size: StepSize,
    /// Kept alive for the dispatches.
    _bench: Bench,
}

impl Lab {
    /// Variants of the product of many tokens that the device runs with these matrices.
    pub fn gemm_variants(&self, matrices: &Matrices) -> Vec<&'static str> {
        let runs = |variant: &&Variant| variant.fits(self.gpu.caps()) && variant.takes(matrices.inner.layout);
        VARIANTS.iter().filter(runs).map(|variant| variant.name).collect()
    }

    /// Uploads matrices of one layout and width.
    pub fn upload(&self, views: &[&MatrixView<'_>]) -> Result<Matrices, GpuError> {
        Ok(Matrices { inner: DeviceMatrix::upload(&self.gpu, "lab", views)? })
    }

    /// The results, `[tokens, rows]` of each stacked matrix.
    pub fn product(&mut self, matrices: &Matrices, case: &ProductCase<'_>) -> Result<Vec<Vec<f32>>, GpuError> {
        let recorded = self.record_product(matrices, case)?;
        self.run(&recorded.dispatches, &recorded.size)?;
        let outputs = recorded.outputs.iter();
        outputs.map(|out| self.read_rows(&out.buffer, case.tokens, out.width, out.stride)).collect()
    }

    /// Seconds of a product, without the packing of int8 activations.
    pub fn time_product(&mut self, matrices: &Matrices, case: &ProductCase<'_>, repeats: u32) -> Result<f64, GpuError> {
        let mut recorded = self.record_product(matrices, case)?;
        self.run(&recorded.dispatches, &recorded.size)?;
        recorded.dispatches.retain(|dispatch| dispatch.name != "quantise");
        self.time(&recorded.dispatches, &recorded.size, repeats)
    }

    fn variant(&self, name: &str) -> Result<Variant, GpuError> {
        let found = VARIANTS.into_iter().find(|variant| variant.name == name && variant.fits(self.gpu.caps()));
        found.ok_or_else(|| GpuError::Unsupported(format!("the product variant {name}")))
    }

    fn record_product(&mut self, matrices: &Matrices, case: &ProductCase<'_>) -> Result<Recorded, GpuError> {
        let matrix = &matrices.inner;
        // Matrix-vector kernels read whole groups of four tokens.
        let (tokens, rows) = (case.tokens, case.tokens.next_multiple_of(4));
        let bench = Bench::new(&self.gpu, Program::empty(0, 0, 0), rows, GpuOptions::kv_of(Precision::Exact), tokens)?;
        let stride = padded(matrix.cols);
        let mut values = pad_rows(case.x, matrix.cols, stride);
        values.resize(rows * stride, 0.0);
        let x = Activation { buffer: self.gpu.buffer_with("x", &values)?, width: matrix.cols, stride };
        let before = if case.add { 1.0f32 } else { 0.0 };
        let output = |&width: &usize| -> Result<Activation, GpuError> {
            let stride = padded(width);
            Ok(Activation { buffer: self.gpu.buffer_with("y", &vec![before; rows * stride])?, width, stride })
        };
        let outputs = matrix.parts.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        let bias = case.bias.map(|bias| self.gpu.buffer_with("bias", bias)).transpose()?;
        let sets = matrix.fields.as_ref().map_or(1, |_| matrix.parts.len());
        let codes = if case.kernel == Kernel::MatvecTwoCodes { Codes::Two } else { Codes::One };
        let int8 = match case.kernel {
            Kernel::MatvecInt8 | Kernel::MatvecTwoCodes => Some(Quantised {
                codes: self.gpu.buffer("codes", (sets * codes.count() * rows * stride) as u64)?,
                scales: self.gpu.buffer("scales", (sets * codes.count() * rows * stride / 4) as u64)?,
                rows,
                per_value: codes,
            }),
            _ => None,
        };
        let variant = match case.kernel {
            Kernel::Gemm(name) => Some(self.variant(name)?),
            _ => None,
        };
        let class = match (variant, tokens) {
            (Some(_), _) => Class::Many,
            (None, 1) => Class::One,
            (None, _) => Class::Few,
        };
        let mut rec = self.recorder(&bench, class, Precision::Fast);
        if let Some(int8) = &int8 {
            ops::quantise(&mut rec, &x, matrix.fields.as_ref(), sets, int8, Rows::Step)?;
        }
        let store = if case.add { Store::Add } else { Store::Set };
        let product = Product { x: &x, int8, matrix, outputs: &outputs, bias, store, rows: Rows::Step, class };
        match variant {
            Some(variant) => {
                ops::gemm_with(&mut rec, &product, &variant)?;
                ops::add_overlay(&mut rec, &product)?;
            }
            None => ops::product(&mut rec, &product)?,
        }
        let dispatches = rec.finish();
        let size = StepSize { rows: tokens as u32, spans: 1, logit_rows: 0, context: 0 };
        Ok(Recorded { dispatches, outputs, size, _bench: bench })
    }
}
