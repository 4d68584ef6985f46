//! Properties of all codecs: error bounds, row access, threads, damaged payloads.

#![allow(clippy::unwrap_used)]

use cortiq_cmf::Dtype;
use cortiq_quant::{Encoding, MatrixView, Q1tOptions, QuantError, decode, encode, f16_to_f32, random_payload};
use proptest::prelude::*;

const GROUP: usize = 32;

/// Every encoder, also those that share a dtype.
fn all_encodings(cols: usize) -> Vec<Encoding> {
    let rms: Vec<f32> = (0..cols).map(|j| 0.25 + (j % 7) as f32 * 0.5).collect();
    let q1t = |keep, row_correction, column_mask| {
        Encoding::Q1t(Q1tOptions { input_rms: Some(rms.clone().into()), keep, row_correction, column_mask })
    };
    let mut all: Vec<Encoding> = Dtype::ALL.into_iter().map(Encoding::for_dtype).collect();
    all.extend([
        Encoding::Q1Carry,
        Encoding::Q1s { keep: 0.0 },
        Encoding::Q1s { keep: 0.2 },
        Encoding::Vbit { mean_milli_bits: 3000 },
        Encoding::Vbit { mean_milli_bits: 6500 },
        q1t(0.05, true, false),
        q1t(0.05, false, true),
        q1t(0.0, true, false),
        q1t(1.0, true, false),
    ]);
    all
}

/// A value of any magnitude that the quantisers must handle, zeros and denormal scales included.
fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..1.0,
        2 => -300.0f32..300.0,
        2 => -1e-5f32..1e-5,
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
    ]
}

/// Rows, columns and values; each row scaled by a power of two so that row widths differ.
fn matrix(step: usize, max_cols: usize) -> impl Strategy<Value = (usize, usize, Vec<f32>)> {
    (1usize..6, 1usize..=max_cols / step).prop_flat_map(move |(rows, blocks)| {
        let cols = blocks * step;
        let values = prop::collection::vec(value(), rows * cols);
        let powers = prop::collection::vec(-6i32..5, rows);
        (values, powers).prop_map(move |(mut values, powers)| {
            for (row, power) in values.chunks_mut(cols).zip(powers) {
                row.iter_mut().for_each(|v| *v *= 2f32.powi(power));
            }
            (rows, cols, values)
        })
    })
}

fn scale(bytes: [u8; 2]) -> f32 {
    f16_to_f32(u16::from_le_bytes(bytes))
}

/// Half a step plus what f32 rounding of the quotient and the product may add.
fn half_step(step: f32, w: f32) -> f32 {
    step * 0.5 * 1.0001 + w.abs() * 1e-6
}

/// The step of each element, read from the payload, for dtypes with evenly spaced levels.
fn steps(view: &MatrixView) -> Option<Vec<f32>> {
    let (rows, cols) = (view.rows(), view.cols());
    let each = |f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).map(|(r, c)| f(r, c)).collect()
    };
    Some(match view {
        MatrixView::Q8Row(v) => each(&|r, _| scale(v.scales()[r])),
        MatrixView::Q8_2f(v) => each(&|r, c| scale(v.row_scales()[r]) * scale(v.col_scales()[c])),
        MatrixView::Q4Block(v) => each(&|r, c| scale(v.scales()[(r * cols + c) / GROUP])),
        MatrixView::Q4Tiled(v) => each(&|r, c| {
            let tile = v.tiles()[(r * cols + c) / GROUP];
            scale([tile[0], tile[1]])
        }),
        MatrixView::Vbit(v) => each(&|r, c| scale(v.scales()[(r * cols + c) / GROUP])),
        _ => return None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn evenly_spaced_codecs_lose_half_a_step((rows, cols, values) in matrix(GROUP, 128)) {
        for enc in all_encodings(cols) {
            let payload = encode(&enc, &values, rows, cols).unwrap();
            let view = MatrixView::new(enc.dtype(), &payload, rows, cols).unwrap();
            let Some(steps) = steps(&view) else { continue };
            let decoded = decode(enc.dtype(), &payload, rows, cols).unwrap();
            for (i, ((w, d), step)) in values.iter().zip(&decoded).zip(&steps).enumerate() {
                prop_assert!((w - d).abs() <= half_step(*step, *w), "{:?} {}: {} -> {}, step {}", enc, i, w, d, step);
            }
        }
    }

    #[test]
    fn any_width_where_groups_are_flat((rows, cols, values) in matrix(1, 100)) {
        for enc in [Encoding::Q8Row, Encoding::Q8_2f, Encoding::Q4Block] {
            let payload = encode(&enc, &values, rows, cols).unwrap();
            let view = MatrixView::new(enc.dtype(), &payload, rows, cols).unwrap();
            let steps = steps(&view).unwrap();
            let mut row = vec![0.0; cols];
            for r in 0..rows {
                view.decode_row(r, &mut row);
                for (c, d) in row.iter().enumerate() {
                    let (w, step) = (values[r * cols + c], steps[r * cols + c]);
                    prop_assert!((w - d).abs() <= half_step(step, w), "{:?} {} {}: {} -> {}", enc, r, c, w, d);
                }
            }
        }
    }

    #[test]
    fn float_codecs((rows, cols, values) in matrix(1, 100)) {
        for (enc, relative, absolute) in [
            (Encoding::F32, 0.0, 0.0),
            (Encoding::F16, 2f32.powi(-11), 2f32.powi(-25)),
            (Encoding::Bf16, 2f32.powi(-8), 0.0),
        ] {
            let payload = encode(&enc, &values, rows, cols).unwrap();
            let decoded = decode(enc.dtype(), &payload, rows, cols).unwrap();
            for (w, d) in values.iter().zip(&decoded) {
                prop_assert!((w - d).abs() <= (w.abs() * relative).max(absolute), "{:?}: {} -> {}", enc, w, d);
            }
        }
    }

    #[test]
    fn q1_keeps_signs_and_mean_sizes((rows, cols, values) in matrix(GROUP, 128)) {
        let payload = encode(&Encoding::Q1, &values, rows, cols).unwrap();
        let decoded = decode(Dtype::Q1, &payload, rows, cols).unwrap();
        for (values, decoded) in values.chunks(GROUP).zip(decoded.chunks(GROUP)) {
            let mean = values.iter().map(|v| f64::from(v.abs())).sum::<f64>() / GROUP as f64;
            let s = f64::from(decoded[0].abs());
            prop_assert!((s - mean).abs() <= mean * 1e-3 || s <= 2f64.powi(-14), "{} {}", s, mean);
            for (w, d) in values.iter().zip(decoded) {
                prop_assert!((*w >= 0.0) == (*d > 0.0) && d.abs() == decoded[0].abs());
            }
        }
    }

    #[test]
    fn q1_carry_follows_the_running_sum((rows, cols, values) in matrix(GROUP, 128)) {
        // The carry is what the signs have not yet paid: sum(w) - sum(decoded) stays within the largest step.
        let payload = encode(&Encoding::Q1Carry, &values, rows, cols).unwrap();
        let decoded = decode(Dtype::Q1, &payload, rows, cols).unwrap();
        for (values, decoded) in values.chunks(cols).zip(decoded.chunks(cols)) {
            let mut carry = 0.0f64;
            let mut bound = 0.0f64;
            for (w, d) in values.iter().zip(decoded) {
                // Either sign leaves |carry + w| - s or less; before it, at most the bound so far plus |w|.
                bound = (bound + f64::from(w.abs()) - f64::from(d.abs())).max(f64::from(d.abs()));
                carry += f64::from(*w) - f64::from(*d);
                prop_assert!(carry.abs() <= bound * 1.0001 + 1e-3, "{} {}", carry, bound);
            }
        }
    }

    #[test]
    fn outliers_are_halves_and_the_largest((rows, cols, values) in matrix(GROUP, 128)) {
        let payload = encode(&Encoding::Q1s { keep: 0.1 }, &values, rows, cols).unwrap();
        let MatrixView::Q1s(view) = MatrixView::new(Dtype::Q1s, &payload, rows, cols).unwrap() else {
            panic!("q1s view")
        };
        let n = rows * cols;
        let mut kept = vec![false; n];
        for [a, b, c, d, v0, v1] in view.entries() {
            let index = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            kept[index] = true;
            let (w, d) = (values[index], scale([*v0, *v1]));
            prop_assert!((w - d).abs() <= (w.abs() * 2f32.powi(-11)).max(2f32.powi(-25)));
        }
        let size = |keep: bool| values.iter().zip(&kept).filter(move |(_, k)| **k == keep).map(|(v, _)| v.abs());
        let least_kept = size(true).fold(f32::INFINITY, f32::min);
        let largest_left = size(false).fold(0.0, f32::max);
        prop_assert!(largest_left < least_kept);
        let budget = (n as f64 * f64::from(0.1f32)).round() as usize;
        let above = size(true).filter(|v| *v > least_kept).count();
        prop_assert!(view.entries().len() >= budget && above < budget);
        prop_assert!((0..rows).map(|r| view.row_entries(r).len()).sum::<usize>() == view.entries().len());
    }

    #[test]
    fn ternary_codes_are_thresholds((rows, cols, values) in matrix(GROUP, 128)) {
        let options = Q1tOptions { keep: 0.1, row_correction: false, ..Q1tOptions::default() };
        let payload = encode(&Encoding::Q1t(options), &values, rows, cols).unwrap();
        let MatrixView::Q1t(view) = MatrixView::new(Dtype::Q1t, &payload, rows, cols).unwrap() else {
            panic!("q1t view")
        };
        prop_assert_eq!(view.entries().len(), (values.len() as f64 * f64::from(0.1f32)).round() as usize);
        let mut row = vec![0.0; cols];
        for r in 0..rows {
            view.decode_row(r, &mut row);
            let outliers: Vec<usize> =
                view.row_entries(r).iter().map(|e| usize::from(u16::from_le_bytes([e[0], e[1]]))).collect();
            for (c, d) in row.iter().enumerate() {
                let w = values[r * cols + c];
                let tile = view.tiles()[(r * cols + c) / GROUP];
                let s = scale([tile[0], tile[1]]);
                let good = if outliers.contains(&c) {
                    (w - d).abs() <= (w.abs() * 2f32.powi(-11)).max(2f32.powi(-25))
                } else if *d == 0.0 {
                    w.abs() < s * 0.5001
                } else {
                    d.abs() == s && (w > 0.0) == (*d > 0.0) && w.abs() >= s * 0.4999
                };
                prop_assert!(good, "{} {}: {} -> {}, s {}", r, c, w, d, s);
            }
        }
    }

    #[test]
    fn groups_equal_the_row((rows, cols, values) in matrix(GROUP, 160), first in 0usize..5, len in 0usize..160) {
        let first = first.min(cols / GROUP);
        let len = len.min(cols - first * GROUP);
        for enc in all_encodings(cols) {
            let payload = encode(&enc, &values, rows, cols).unwrap();
            let view = MatrixView::new(enc.dtype(), &payload, rows, cols).unwrap();
            let whole = decode(enc.dtype(), &payload, rows, cols).unwrap();
            let mut out = vec![f32::NAN; len];
            for (r, row) in whole.chunks(cols).enumerate() {
                view.decode_groups(r, first, &mut out);
                prop_assert_eq!(&out[..], &row[first * GROUP..][..len], "{:?} row {}", enc, r);
            }
        }
    }

    #[test]
    fn flat_dtypes_ignore_row_borders(rows in 1usize..5, cols in 1usize..80, seed: u64) {
        // Readers flatten widths that are no multiple of 32 (§7.4, §7.5, §7.8).
        let n = rows * cols;
        let groups = n.div_ceil(GROUP);
        for dtype in [Dtype::Q4Block, Dtype::Q4Tiled, Dtype::Q1] {
            let payload = random_payload(dtype, groups, GROUP, seed).unwrap();
            let flat = decode(dtype, &payload, 1, n).unwrap();
            prop_assert_eq!(decode(dtype, &payload, rows, cols).unwrap(), flat, "{}", dtype.name());
        }
        let base = random_payload(Dtype::Q1, groups, GROUP, seed).unwrap();
        let index = (seed % n as u64) as u32;
        let payload = [&base[..], &1u32.to_le_bytes(), &index.to_le_bytes(), &[0x00, 0x44]].concat();
        let flat = decode(Dtype::Q1s, &payload, 1, n).unwrap();
        prop_assert_eq!(flat[index as usize], 4.0);
        prop_assert_eq!(decode(Dtype::Q1s, &payload, rows, cols).unwrap(), flat);
    }

    #[test]
    fn garbage_never_panics(rows in 1usize..5, groups in 1usize..4, seed: u64, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let cols = groups * GROUP;
        let mut row = vec![0.0; cols];
        for dtype in Dtype::ALL {
            let mut payload = random_payload(dtype, rows, cols, seed).unwrap();
            let len = payload.len();
            for step in 0..3 {
                match step {
                    // Some bytes, then all bytes.
                    0 => damage.iter().take(3).for_each(|(at, byte)| payload[at.index(len)] = *byte),
                    1 => damage.iter().for_each(|(at, byte)| payload[at.index(len)] = *byte),
                    _ => payload.iter_mut().zip(damage.iter().cycle()).for_each(|(p, (_, byte))| *p ^= *byte),
                }
                match MatrixView::new(dtype, &payload, rows, cols) {
                    Ok(view) => (0..rows).for_each(|r| view.decode_row(r, &mut row)),
                    Err(error) => prop_assert!(
                        matches!(error, QuantError::Corrupt { .. } | QuantError::PayloadLength { .. }),
                        "{}: {}", dtype.name(), error
                    ),
                }
            }
        }
    }

    #[test]
    fn wrong_lengths_are_errors(rows in 1usize..5, groups in 1usize..4, seed: u64, cut in any::<prop::sample::Index>(), more in 1usize..40) {
        let cols = groups * GROUP;
        for dtype in Dtype::ALL {
            let payload = random_payload(dtype, rows, cols, seed).unwrap();
            let short = &payload[..cut.index(payload.len())];
            let long = [payload.as_slice(), &vec![0; more]].concat();
            for bytes in [short, &long] {
                let error = MatrixView::new(dtype, bytes, rows, cols).unwrap_err();
                prop_assert!(matches!(error, QuantError::PayloadLength { .. }), "{}: {}", dtype.name(), error);
            }
        }
    }
}

#[test]
fn threads_do_not_change_the_bytes() {
    let (rows, cols) = (300, 2048);
    let payload = random_payload(Dtype::F32, rows, cols, 11).unwrap();
    let mut values = decode(Dtype::F32, &payload, rows, cols).unwrap();
    // Rows of different size, and ties for the selecting encoders.
    for (r, row) in values.chunks_mut(cols).enumerate() {
        row.iter_mut().for_each(|v| *v = (*v * 4096.0).round() / 4096.0 * (1 + r % 9) as f32);
    }
    let pools: Vec<_> = [1, 2, 7]
        .into_iter()
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap())
        .collect();
    for enc in all_encodings(cols) {
        let results: Vec<_> =
            pools.iter().map(|pool| pool.install(|| encode(&enc, &values, rows, cols).unwrap())).collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{enc:?}");
        let decoded: Vec<_> =
            pools.iter().map(|pool| pool.install(|| decode(enc.dtype(), &results[0], rows, cols).unwrap())).collect();
        assert!(decoded.windows(2).all(|pair| pair[0] == pair[1]), "{enc:?}");
    }
}

#[test]
fn bad_values_are_named() {
    let (rows, cols) = (4, 64);
    for enc in all_encodings(cols) {
        let is_float = matches!(enc, Encoding::F32 | Encoding::F16 | Encoding::Bf16);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![0.1; rows * cols];
            values[77] = bad;
            values[200] = bad;
            let result = encode(&enc, &values, rows, cols);
            if is_float {
                let decoded = decode(enc.dtype(), &result.unwrap(), rows, cols).unwrap();
                assert!(decoded[77] == bad || (bad.is_nan() && decoded[77].is_nan()), "{enc:?}");
            } else {
                assert_eq!(result, Err(QuantError::NotFinite { index: 77 }), "{enc:?}");
            }
        }
        let mut values = vec![0.1; rows * cols];
        values[130] = -1e30;
        let result = encode(&enc, &values, rows, cols);
        match result {
            Err(QuantError::OutOfRange { index: 130, dtype, .. }) => assert_eq!(dtype, enc.dtype().name()),
            Ok(_) => assert!(is_float, "{enc:?}"),
            Err(error) => panic!("{enc:?}: {error}"),
        }
    }
}

/// The largest accepted magnitude still decodes to something finite and near.
#[test]
fn range_limits_are_tight_enough() {
    for enc in all_encodings(64) {
        let probe = encode(&enc, &[f32::MAX; 128], 2, 64);
        let Err(QuantError::OutOfRange { limit, .. }) = probe else {
            continue;
        };
        let values = vec![limit; 128];
        let payload = encode(&enc, &values, 2, 64).unwrap();
        let decoded = decode(enc.dtype(), &payload, 2, 64).unwrap();
        assert!(decoded.iter().all(|d| (d / limit - 1.0).abs() < 0.01), "{enc:?}: {:?}", &decoded[..4]);
    }
}

#[test]
fn bad_shapes_and_counts() {
    for enc in all_encodings(64) {
        let encode = |n: usize, rows, cols| encode(&enc, &vec![0.1; n], rows, cols);
        assert!(matches!(encode(0, 0, 64), Err(QuantError::Empty { .. })), "{enc:?}");
        assert!(matches!(encode(0, 64, 0), Err(QuantError::Empty { .. })), "{enc:?}");
        assert!(matches!(encode(127, 2, 64), Err(QuantError::InputLength { .. })), "{enc:?}");
        assert!(matches!(encode(1, usize::MAX, 64), Err(QuantError::TooLarge { .. })), "{enc:?}");
        if !enc.accepts(2, 33) {
            assert!(matches!(encode(66, 2, 33), Err(QuantError::Shape { .. })), "{enc:?}");
        }
        let dtype = enc.dtype();
        for (rows, cols) in [(0, 64), (64, 0), (usize::MAX, 64), (usize::MAX, usize::MAX), (1 << 40, 1 << 40)] {
            let error = MatrixView::new(dtype, &[0; 64], rows, cols).unwrap_err();
            let expected = matches!(error, QuantError::Empty { .. } | QuantError::TooLarge { .. });
            assert!(expected, "{enc:?} {rows} {cols}: {error}");
        }
    }
}
