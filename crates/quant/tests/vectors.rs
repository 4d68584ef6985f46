//! Byte and bit equality with every codec vector of interop/vectors.json (docs/cmf-format.md §15).

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use cortiq_cmf::Dtype;
use cortiq_quant::{Encoding, Q1tOptions, decode, encode};
use serde_json::Value;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|v| f32::from_bits(u32::from_str_radix(v.as_str().unwrap(), 16).unwrap()))
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn encoding(case: &Value, dtype: Dtype) -> Encoding {
    let mean_milli_bits = (case["mean_bits"].as_f64().unwrap_or(4.25) * 1000.0) as u32;
    match dtype {
        Dtype::VbitRo => Encoding::Vbit { mean_milli_bits },
        Dtype::Vbit => Encoding::VbitPlain { mean_milli_bits },
        Dtype::Q1t => Encoding::Q1t(Q1tOptions {
            input_rms: Some(Arc::from(floats(&case["rms"]))),
            keep: case["keep"].as_f64().unwrap() as f32,
            row_correction: case["row_correction"].as_bool().unwrap(),
            column_mask: false,
        }),
        other => Encoding::for_dtype(other),
    }
}

#[test]
fn vectors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/vectors.json");
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = file["dtype"].as_array().unwrap();
    let mut encoded = 0;
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let dtype = Dtype::from_name(case["dtype"].as_str().unwrap()).unwrap();
        let shape = case["shape"].as_array().unwrap();
        let dim = |i: usize| shape[i].as_u64().unwrap() as usize;
        let (rows, cols) = (dim(0), dim(1));
        let payload = hex(case["payload"].as_str().unwrap());
        let decoded = decode(dtype, &payload, rows, cols).unwrap();
        assert_eq!(bits(&decoded), bits(&floats(&case["decoded"])), "decode {name}");
        if case["encode"] == Value::Bool(true) {
            let input = floats(&case["input"]);
            let ours = encode(&encoding(case, dtype), &input, rows, cols).unwrap();
            assert_eq!(ours, payload, "encode {name}");
            encoded += 1;
        }
    }
    assert_eq!((cases.len(), encoded), (18, 16), "cases in the file");
}

/// The input x of §15.
fn x() -> Vec<f32> {
    (0..32).map(|i| ((7 * i + 3) % 17 - 8) as f32 / 8.0).collect()
}

/// The vectors as the format page prints them, independent of the machine-readable file.
#[test]
fn printed_vectors() {
    let x = x();
    let with_tail: Vec<f32> = x.iter().copied().chain([0.3, -0.9]).collect();
    let q8_row: Vec<f32> = [1.0, -0.5, 0.25, 0.0, -1.27, 0.004, 0.9, -0.015].into_iter().chain([0.0; 8]).collect();
    let two_rows: Vec<f32> = x.iter().copied().chain(x.iter().map(|v| v / 8.0)).collect();
    let cases: &[(&str, &[f32], usize, &str)] = &[
        ("q8", &q8_row, 2, "64ce190081005aff00000000000000001f210004"),
        ("q8_2f", &[1.0, -0.5, 0.25, 8.0, -0.75, 0.125, 0.5, -6.0], 2, "69813b69ab227fab88211a21123bd53553361247"),
        ("q4", &x, 1, "a4714d2be8c5936f4c1ad7b4825e3cf99230"),
        ("q4", &with_tail, 1, "a4714d2be8c5936f4c1ad7b4825e3cf91a88888888888888888888888888888892301d30"),
        // The same groups seen as two rows of 17: q4_block runs over the flattened matrix.
        ("q4", &with_tail, 2, "a4714d2be8c5936f4c1ad7b4825e3cf91a88888888888888888888888888888892301d30"),
        ("q4t", &x, 1, "9230a4714d2be8c5936f4c1ad7b4825e3cf9"),
        (
            "vbit_plain",
            &two_rows,
            2,
            "06032128552932701bd8fac47fa4ef223f97c8c9c06f63eb11fe93bc88fe303a607952f2a6074c0f2a5e",
        ),
        (
            "vbit",
            &two_rows,
            2,
            "06032128552900000000180000002400000032701bd8fac47fa4ef223f97c8c9c06f63eb11fe93bc88fe303a607952f2a6074c0f2a5e",
        ),
        ("q1", &x, 1, "4838526ba5d6"),
    ];
    for (name, input, rows, want) in cases {
        let enc = Encoding::parse(name, 4.25).unwrap();
        let got = encode(&enc, input, *rows, input.len() / rows).unwrap();
        assert_eq!(got, hex(want), "{name}");
    }
}
