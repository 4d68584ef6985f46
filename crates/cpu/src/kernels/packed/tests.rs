use cortiq_cmf::Dtype;
use cortiq_quant::{MatrixView, f16_to_f32, random_payload};

use super::{InputBits, Inputs, Job};
use crate::Isa;
use crate::pool::Pool;

const WIDTHS: [InputBits; 2] = [InputBits::Eight, InputBits::Sixteen];

const DTYPES: [Dtype; 9] = [
    Dtype::Q8Row,
    Dtype::Q8_2f,
    Dtype::Q4Block,
    Dtype::Q4Tiled,
    Dtype::Vbit,
    Dtype::VbitRo,
    Dtype::Q1,
    Dtype::Q1s,
    Dtype::Q1t,
];

/// Odd row counts; one to many groups, whole vectors of scales and not.
const SHAPES: [(usize, usize); 7] = [(1, 32), (3, 64), (7, 96), (5, 256), (9, 288), (4, 576), (33, 1056)];

fn wave(n: usize, salt: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * (0.731 + salt * 0.01) + salt).sin() * (0.1 + (i as f32 * 0.011).cos().abs())).collect()
}

/// Rows `first..first + rows` times all rows of `x`, `[tokens, rows]`.
fn run(isa: Isa, view: &MatrixView<'_>, x: &[f32], width: InputBits, first: usize, rows: usize) -> Vec<f32> {
    let (mut pool, mut inputs) = (Pool::new(1).unwrap(), Inputs::default());
    let index = inputs.prepare(&mut pool, isa, view, x, width).unwrap();
    let x = inputs.rows(index);
    let mut out = vec![f32::NAN; x.len() * rows];
    let mut scratch = vec![f32::NAN; Job::scratch(rows, view.cols())];
    isa.packed_products(view, Job { first_row: first, rows, x, out: &mut out, scratch: &mut scratch });
    out
}

/// The same from decoded weights and the values that the quantised inputs stand for, and the sum of magnitudes.
fn plain(isa: Isa, view: &MatrixView<'_>, x: &[f32], width: InputBits) -> Vec<(f64, f64)> {
    let (mut pool, mut inputs) = (Pool::new(1).unwrap(), Inputs::default());
    let index = inputs.prepare(&mut pool, isa, view, x, width).unwrap();
    let packed = inputs.rows(index);
    let mut row = vec![0.0; view.cols()];
    let mut out = Vec::new();
    for t in 0..packed.len() {
        for r in 0..view.rows() {
            view.decode_row(r, &mut row);
            if let MatrixView::Q8_2f(view) = view {
                // The columns' scales are in the inputs.
                let scale = f16_to_f32(u16::from_le_bytes(view.row_scales()[r]));
                let codes = &view.codes()[r * view.cols()..];
                row.iter_mut().zip(codes).for_each(|(w, code)| *w = f32::from(*code) * scale);
            }
            let terms = row.iter().enumerate().map(|(c, w)| f64::from(*w) * f64::from(packed.row(t).value(width, c)));
            out.push(terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs())));
        }
    }
    out
}

fn check(what: &str, isa: Isa, view: &MatrixView<'_>, x: &[f32], width: InputBits) {
    let rows = view.rows();
    let together = run(isa, view, x, width, 0, rows);
    for (ours, (exact, size)) in together.iter().zip(plain(isa, view, x, width)) {
        let error = (f64::from(*ours) - exact).abs();
        assert!(error <= 2e-6 * size + 1e-30, "{what}: {ours} instead of {exact}, of {size}");
    }
    for (t, row) in x.chunks_exact(view.cols()).enumerate() {
        let alone = run(isa, view, row, width, 0, rows);
        let equal = alone.iter().zip(&together[t * rows..]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(equal, "{what}: input {t} alone differs");
    }
}

#[test]
fn products_equal_plain_sums_for_every_dtype() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            for (i, (rows, cols)) in SHAPES.into_iter().enumerate() {
                let payload = random_payload(dtype, rows, cols, 7 + i as u64).unwrap();
                let view = MatrixView::new(dtype, &payload, rows, cols).unwrap();
                for (tokens, width) in [1, 2, 3, 4, 7].into_iter().zip(WIDTHS.into_iter().cycle()) {
                    let what = format!("{isa:?} {} {rows}x{cols}, {tokens} inputs, {width:?}", dtype.name());
                    check(&what, isa, &view, &wave(tokens * cols, i as f32), width);
                }
            }
        }
    }
}

#[test]
fn a_part_of_the_rows_is_the_same_as_in_the_whole() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            let (rows, cols) = (21, 160);
            let payload = random_payload(dtype, rows, cols, 3).unwrap();
            let view = MatrixView::new(dtype, &payload, rows, cols).unwrap();
            for tokens in [1, 5] {
                let x = wave(tokens * cols, 1.0);
                let whole = run(isa, &view, &x, InputBits::Eight, 0, rows);
                for (first, count) in [(0, 3), (6, 8), (20, 1)] {
                    let part = run(isa, &view, &x, InputBits::Eight, first, count);
                    for t in 0..tokens {
                        let expected = &whole[t * rows + first..][..count];
                        assert_eq!(&part[t * count..][..count], expected, "{isa:?} {} {first}", dtype.name());
                    }
                }
            }
        }
    }
}

/// Where the codes of a dtype are: all bytes at `first + k` of units of `unit` bytes with `first <= k`, in the first
/// `len` bytes.
fn extreme(dtype: Dtype, rows: usize, cols: usize, code: u8) -> Vec<u8> {
    let mut payload = random_payload(dtype, rows, cols, 11).unwrap();
    let groups = rows * cols / 32;
    let (units, unit, first) = match dtype {
        Dtype::Q8Row | Dtype::Q8_2f => (groups, 32, 0),
        Dtype::Q4Block => (groups, 16, 0),
        Dtype::Q4Tiled => (groups, 18, 2),
        Dtype::Q1 | Dtype::Q1s => (groups, 6, 2),
        Dtype::Vbit | Dtype::VbitRo => {
            let table = if dtype == Dtype::VbitRo { 4 * (rows + 1) } else { 0 };
            let start = rows + 2 * groups + table;
            payload[start..].fill(code);
            return payload;
        }
        other => panic!("no extremes of {}", other.name()),
    };
    for unit in payload.chunks_exact_mut(unit).take(units) {
        unit[first..].fill(code);
    }
    payload
}

#[test]
fn extreme_codes_do_not_saturate() {
    let (rows, cols) = (5, 96);
    for isa in Isa::available() {
        for dtype in DTYPES.into_iter().filter(|dtype| *dtype != Dtype::Q1t) {
            for code in [0x00, 0xFF, 0x7F, 0x80, 0x81, 0x01] {
                let payload = extreme(dtype, rows, cols, code);
                let view = MatrixView::new(dtype, &payload, rows, cols).unwrap();
                for width in WIDTHS {
                    for signs in 0..4 {
                        let x: Vec<f32> = (0..2 * cols)
                            .map(|i| if [false, true, i % 2 == 0, i % 3 == 0][signs] { -3.0 } else { 3.0 })
                            .collect();
                        let what = format!("{isa:?} {} {code:#x} {signs} {width:?}", dtype.name());
                        check(&what, isa, &view, &x, width);
                    }
                }
            }
        }
    }
}

#[test]
fn zero_rows_and_tiny_scales_are_kept() {
    let (rows, cols) = (4, 64);
    for isa in Isa::available() {
        let mut payload = vec![100u8; rows * cols];
        payload[..cols].fill(0);
        // The smallest f16, the largest, one, and the least scale that writers use.
        for scale in [0x0001u16, 0x7BFF, 0x3C00, 0x0400] {
            payload.extend(scale.to_le_bytes());
        }
        let view = MatrixView::new(Dtype::Q8Row, &payload, rows, cols).unwrap();
        for width in WIDTHS {
            for size in [0.0, 1e-38, 1e-29, 1e-20, 1.0, 1e20] {
                let x: Vec<f32> = wave(3 * cols, 2.0).iter().map(|x| x * size).collect();
                check(&format!("{isa:?} {size}"), isa, &view, &x, width);
                let out = run(isa, &view, &x, width, 0, rows);
                assert!(out.iter().step_by(rows).all(|y| *y == 0.0), "{isa:?} {size}");
            }
        }
    }
}

#[test]
fn inputs_are_rounded_to_the_nearest_code() {
    let payload = random_payload(Dtype::Q8Row, 1, 96, 1).unwrap();
    let view = MatrixView::new(Dtype::Q8Row, &payload, 1, 96).unwrap();
    for isa in Isa::available() {
        for (width, largest) in [(InputBits::Eight, 127.0f32), (InputBits::Sixteen, 32767.0)] {
            let mut x = wave(2 * 96, 5.0);
            x[32..64].fill(0.0);
            x[96] = -7.0;
            let (mut pool, mut inputs) = (Pool::new(2).unwrap(), Inputs::default());
            let index = inputs.prepare(&mut pool, isa, &view, &x, width).unwrap();
            for (t, x) in x.chunks_exact(96).enumerate() {
                let row = inputs.rows(index).row(t);
                for (g, x) in x.chunks_exact(32).enumerate() {
                    let step = x.iter().fold(0.0, |m: f32, x| m.max(x.abs())) / largest;
                    assert_eq!(row.scales[g], step);
                    let mut sum = 0.0;
                    for (k, x) in x.iter().enumerate() {
                        let value = row.value(width, g * 32 + k);
                        assert!((value - x).abs() <= 0.501 * step, "{isa:?} {width:?}: {value} for {x}");
                        sum += f64::from(value);
                    }
                    assert!((f64::from(row.sums[g]) - sum).abs() <= 1e-4 * f64::from(step * largest));
                }
                assert!(row.scales[3..].iter().chain(&row.sums[3..]).all(|x| *x == 0.0), "padding");
            }
        }
    }
}

#[test]
fn what_is_no_number_stays_visible() {
    for isa in Isa::available() {
        for dtype in DTYPES {
            let payload = random_payload(dtype, 3, 128, 1).unwrap();
            let view = MatrixView::new(dtype, &payload, 3, 128).unwrap();
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = wave(2 * 128, 1.0);
                x[70] = bad;
                let out = run(isa, &view, &x, InputBits::Eight, 0, 3);
                assert!(out[..3].iter().all(|y| !y.is_finite()), "{isa:?} {} {bad}: {out:?}", dtype.name());
                assert!(out[3..].iter().all(|y| y.is_finite()), "{isa:?} {} {bad}: {out:?}", dtype.name());
            }
        }
    }
}

#[test]
fn rows_are_quantised_once_for_all_matrices_that_can_share_them() {
    let make = |dtype| random_payload(dtype, 2, 64, 1).unwrap();
    let (plain, first, second) = (make(Dtype::Q4Block), make(Dtype::Q8_2f), make(Dtype::Q8_2f));
    let view = |dtype, payload| MatrixView::new(dtype, payload, 2, 64).unwrap();
    let (x, isa) = (wave(64, 1.0), Isa::detect());
    let (mut pool, mut inputs) = (Pool::new(1).unwrap(), Inputs::default());
    let mut place = |view: MatrixView<'_>| inputs.prepare(&mut pool, isa, &view, &x, InputBits::Eight).unwrap();
    assert_eq!(place(view(Dtype::Q4Block, &plain)), 0);
    assert_eq!(place(view(Dtype::Q4Block, &plain)), 0);
    assert_eq!(place(view(Dtype::Q8_2f, &first)), 1);
    assert_eq!(place(view(Dtype::Q8_2f, &second)), 2);
    assert_eq!(place(view(Dtype::Q8_2f, &first)), 1);
}
