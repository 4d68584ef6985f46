//! The last step of docs/adding-a-dtype.md: fails when a dtype of the container lacks a codec, a view, a random
//! payload, a name, or does not agree with the container's own checks.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use cortiq_cmf::{CmfFile, CmfWriter, Dtype, Header, Sections, TensorPlan, WriteOptions};
use cortiq_quant::{Encoding, MatrixView, QuantError, decode, encode, random_payload};

const ROWS: usize = 12;
const COLS: usize = 256;

fn weights() -> Vec<f32> {
    // A fixed pattern with a wide spread of row sizes.
    (0..ROWS * COLS).map(|i| ((i * 7919 % 997) as f32 / 498.5 - 1.0) * 0.05 * (1 + i / COLS) as f32).collect()
}

#[test]
fn every_dtype_has_all_parts() {
    let weights = weights();
    for dtype in Dtype::ALL {
        let name = dtype.name();
        let enc = Encoding::for_dtype(dtype);
        assert_eq!(enc.dtype(), dtype, "{name}: Encoding::for_dtype");
        let parsed = Encoding::parse(name, 4.25).unwrap_or_else(|| panic!("{name}: Encoding::parse"));
        let same_codes = matches!((parsed.dtype(), dtype), (Dtype::VbitRo, Dtype::Vbit));
        assert!(parsed.dtype() == dtype || same_codes, "{name}: Encoding::parse gives {parsed:?}");

        let encoded = encode(&enc, &weights, ROWS, COLS).unwrap();
        let random = random_payload(dtype, ROWS, COLS, 1).unwrap();
        for payload in [&encoded, &random] {
            if let Some(len) = dtype.fixed_len(&[ROWS as u32, COLS as u32]).unwrap() {
                assert_eq!(payload.len() as u64, len, "{name}: length");
            }
            let view = MatrixView::new(dtype, payload, ROWS, COLS).unwrap();
            assert_eq!((view.rows(), view.cols(), view.dtype()), (ROWS, COLS, dtype), "{name}: view");
            let decoded = decode(dtype, payload, ROWS, COLS).unwrap();
            assert!(decoded.iter().all(|v| v.is_finite()), "{name}: finite");
            let mut row = vec![f32::NAN; COLS];
            for (r, want) in decoded.chunks(COLS).enumerate() {
                view.decode_row(r, &mut row);
                assert_eq!(row, want, "{name}: decode_row");
            }
        }
        assert_correlated(name, &weights, &decode(dtype, &encoded, ROWS, COLS).unwrap());

        let length = |payload: &[u8]| MatrixView::new(dtype, payload, ROWS, COLS).map(|_| ());
        let longer = [encoded.as_slice(), &[0]].concat();
        for payload in [&encoded[..encoded.len() - 1], &longer, &[]] {
            assert!(
                matches!(length(payload), Err(QuantError::PayloadLength { .. })),
                "{name}: {} bytes",
                payload.len()
            );
        }
    }
}

/// A codec that lost signs, order or scale would not pass: even one bit per weight keeps this much (the error carry of
/// q1s trades some of it for a small error of sums).
fn assert_correlated(name: &str, a: &[f32], b: &[f32]) {
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    assert!(cosine > 0.7, "{name}: cosine {cosine}");
    let ratio = (dot(b, b) / dot(a, a)).sqrt();
    assert!((0.75..1.25).contains(&ratio), "{name}: size {ratio}");
}

#[test]
fn the_container_accepts_every_payload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.cmf");
    let weights = weights();
    let mut plan = Vec::new();
    let mut payloads = Vec::new();
    for dtype in Dtype::ALL {
        let encoded = encode(&Encoding::for_dtype(dtype), &weights, ROWS, COLS).unwrap();
        let random = random_payload(dtype, ROWS, COLS, 2).unwrap();
        for (kind, payload) in [("encoded", encoded), ("random", random)] {
            plan.push(TensorPlan {
                name: format!("{}.{kind}", dtype.name()),
                dtype,
                shape: vec![ROWS as u32, COLS as u32],
            });
            payloads.push(payload);
        }
    }
    let options = WriteOptions { digests: false, overwrite: false };
    let sections = Sections { masks: None, vocab: None };
    let mut writer = CmfWriter::create(&path, header(), plan, sections, options).unwrap();
    for payload in &payloads {
        writer.write_tensor(payload).unwrap();
    }
    writer.finish().unwrap();
    let file = CmfFile::open(&path).unwrap();
    assert_eq!(file.tensors().len(), payloads.len());
    for (index, payload) in payloads.iter().enumerate() {
        assert_eq!(file.data(index).unwrap(), payload, "{}", file.tensors()[index].name);
    }
}

/// Any valid header does: the one of an interop file.
fn header() -> Header {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/fileA.cmf");
    CmfFile::open(&path).unwrap().header().clone()
}
