//! Products on the gpu against a product in f64, for every kernel that the adapter runs: shapes that are no multiple of
//! any tile, every layout, bias, addition, several outputs, the overlay in the first and the last column.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cortiq_conformance::test_gpu;
use cortiq_gpu::lab::{Kernel, Lab, Matrices, ProductCase};
use cortiq_quant::{Encoding, MatrixView, Q1tOptions, decode, encode};

/// Numbers of tokens around the sizes of tiles.
const TOKENS: [usize; 8] = [1, 17, 31, 32, 40, 64, 70, 130];

/// Values in -1 .. 1.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// A matrix in its storage type and what it means.
struct Matrix {
    encoding: Encoding,
    payload: Vec<u8>,
    values: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl Matrix {
    fn of(encoding: &Encoding, values: &[f32], rows: usize, cols: usize) -> Self {
        let payload = encode(encoding, values, rows, cols).unwrap();
        let values = decode(encoding.dtype(), &payload, rows, cols).unwrap();
        Self { encoding: encoding.clone(), payload, values, rows, cols }
    }

    fn random(encoding: &Encoding, rows: usize, cols: usize, seed: u32) -> Self {
        Self::of(encoding, &noise(rows * cols, seed), rows, cols)
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::new(self.encoding.dtype(), &self.payload, self.rows, self.cols).unwrap()
    }

    /// The product of a row with an activation, and the sum of the products' magnitudes.
    fn product(&self, row: usize, x: &[f32]) -> (f64, f64) {
        let weights = &self.values[row * self.cols..(row + 1) * self.cols];
        let terms = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }
}

/// Error that a kernel may make, as a part of the sum of the products' magnitudes.
fn tolerance(kernel: Kernel) -> f64 {
    match kernel {
        // An activation is off by half a step of 1 / 127 of the largest of its group.
        Kernel::MatvecInt8 | Kernel::Gemm("int8") => 1.2e-2,
        // Of 1 / 32,000, and what f32 sums of two products lose.
        Kernel::MatvecTwoCodes => 5.0e-5,
        // Two roundings to f16.
        Kernel::Gemm(name) if name.starts_with("coop") => 1.0e-3,
        Kernel::Matvec | Kernel::Gemm(_) => 1.0e-5,
    }
}

/// Kernels that the adapter runs with these matrices.
fn kernels(lab: &Lab, matrices: &Matrices) -> Vec<Kernel> {
    let mut kernels = vec![Kernel::Matvec];
    if matrices.takes_int8() {
        kernels.extend([Kernel::MatvecInt8, Kernel::MatvecTwoCodes]);
    }
    kernels.extend(lab.gemm_variants(matrices).into_iter().map(Kernel::Gemm));
    kernels
}

/// Runs stacked matrices through every kernel that takes them.
fn check(lab: &mut Lab, matrices: &[Matrix], tokens: &[usize], bias: Option<&[f32]>, add: bool) {
    let views: Vec<MatrixView<'_>> = matrices.iter().map(Matrix::view).collect();
    let device = lab.upload(&views.iter().collect::<Vec<_>>()).unwrap();
    let cols = matrices[0].cols;
    for kernel in kernels(lab, &device) {
        for &tokens in tokens {
            let x = noise(tokens * cols, 3 + tokens as u32);
            let case = ProductCase { kernel, x: &x, tokens, bias, add };
            let outputs = lab.product(&device, &case).unwrap();
            let mut first_row = 0;
            for (part, (matrix, output)) in matrices.iter().zip(&outputs).enumerate() {
                let what = format!("{kernel:?} {:?}, {tokens} tokens, matrix {part}", matrix.encoding);
                let offset =
                    |row: usize| f64::from(bias.map_or(0.0, |b| b[first_row + row])) + f64::from(u8::from(add));
                compare(&what, matrix, &x, output, tolerance(kernel), offset);
                first_row += matrix.rows;
            }
        }
    }
}

fn compare(what: &str, matrix: &Matrix, x: &[f32], output: &[f32], tolerance: f64, offset: impl Fn(usize) -> f64) {
    assert_eq!(output.len(), x.len() / matrix.cols * matrix.rows, "{what}");
    for (token, (x, y)) in x.chunks(matrix.cols).zip(output.chunks(matrix.rows)).enumerate() {
        for (row, value) in y.iter().enumerate() {
            let (sum, size) = matrix.product(row, x);
            let error = (f64::from(*value) - sum - offset(row)).abs();
            let allowed = tolerance * size + 1e-5;
            assert!(
                error <= allowed,
                "{what}: token {token}, row {row}: {value}, not {}; {error:.2e}",
                sum + offset(row)
            );
        }
    }
}

fn check_layout(encoding: &Encoding) {
    let mut lab = Lab::new(test_gpu());
    let widths = [52, 64, 160].into_iter().filter(|cols| encoding.accepts(100, *cols));
    for cols in widths {
        check(&mut lab, &[Matrix::random(encoding, 100, cols, 11)], &TOKENS, None, false);
    }
}

macro_rules! layouts {
    ($($name:ident: $encoding:expr,)*) => {
        mod layouts {
            use super::*;
            $(#[test] fn $name() { check_layout(&$encoding); })*
        }
    };
}

layouts! {
    f32: Encoding::F32,
    f16: Encoding::F16,
    bf16: Encoding::Bf16,
    q8_row: Encoding::Q8Row,
    q8_2f: Encoding::Q8_2f,
    q4_block: Encoding::Q4Block,
    q4_tiled: Encoding::Q4Tiled,
    vbit: Encoding::Vbit { mean_milli_bits: 5000 },
    q1: Encoding::Q1,
    q1s: Encoding::Q1s { keep: 0.02 },
    q1t: Encoding::Q1t(Q1tOptions::default()),
}

#[test]
fn several_outputs_with_bias_and_addition() {
    let mut lab = Lab::new(test_gpu());
    let cases: [(Encoding, &[usize], bool, bool); 4] = [
        (Encoding::Q8Row, &[100, 36], true, false),
        (Encoding::F16, &[100], true, true),
        (Encoding::Q8_2f, &[70, 33, 1], true, true),
        (Encoding::Q1s { keep: 0.02 }, &[40, 130, 2, 64], false, true),
    ];
    for (encoding, rows, with_bias, add) in cases {
        let matrices: Vec<Matrix> =
            rows.iter().zip(21u32..).map(|(rows, seed)| Matrix::random(&encoding, *rows, 96, seed)).collect();
        let bias = noise(rows.iter().sum(), 5);
        check(&mut lab, &matrices, &[5, 70], with_bias.then_some(bias.as_slice()), add);
    }
}

#[test]
fn seventy_thousand_rows() {
    let mut lab = Lab::new(test_gpu());
    check(&mut lab, &[Matrix::random(&Encoding::F16, 70_000, 32, 31)], &[17], None, false);
}

/// Rows that a thread brings several pieces of.
#[test]
fn long_rows() {
    let mut lab = Lab::new(test_gpu());
    for encoding in [Encoding::Q8Row, Encoding::Q4Block] {
        check(&mut lab, &[Matrix::random(&encoding, 20, 4960, 51)], &[1, 3], None, false);
    }
}

#[test]
fn an_overlay_reaches_the_first_and_the_last_column() {
    let mut lab = Lab::new(test_gpu());
    let (rows, cols) = (100, 96);
    let mut values: Vec<f32> = noise(rows * cols, 41).iter().map(|value| value * 0.01).collect();
    for row in (0..rows).step_by(3) {
        values[row * cols] = 5.0;
        values[row * cols + cols - 1] = -7.0;
    }
    let ternary = Q1tOptions { keep: 0.02, ..Q1tOptions::default() };
    for encoding in [Encoding::Q1s { keep: 0.02 }, Encoding::Q1t(ternary)] {
        let matrix = Matrix::of(&encoding, &values, rows, cols);
        assert!((matrix.values[0] - 5.0).abs() < 0.1 && (matrix.values[cols - 1] + 7.0).abs() < 0.1, "{encoding:?}");
        check(&mut lab, &[matrix], &[1, 4, 40, 130], None, false);
    }
}
