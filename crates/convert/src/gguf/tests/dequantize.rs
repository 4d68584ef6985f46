//! Every tensor type against values of the PyPI package `gguf` (tools/gguf_vectors.py).

use std::path::Path;

use super::{read_json, text};
use crate::gguf::{GgmlType, dequantize, type_name};

fn from_hex(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn every_type_gives_the_reference_values_to_the_bit() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf_dequant.json");
    let vectors = read_json(&path);
    let vectors = vectors.as_object().unwrap();
    assert_eq!(vectors.len(), GgmlType::ALL.len());
    for ggml_type in GgmlType::ALL {
        let name = ggml_type.name();
        let case = &vectors[name];
        assert_eq!(case["id"].as_u64(), Some(u64::from(ggml_type.id())), "{name}");
        let blocks = from_hex(text(case, "blocks"));
        let count = blocks.len() / ggml_type.block_bytes();
        assert!(count >= 3, "{name}");
        let expected = from_hex(text(case, "values"));
        let values = dequantize(ggml_type, &blocks).unwrap();
        assert_eq!(values.len(), count * ggml_type.block_len(), "{name}");
        let found: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (f, e)) in found.chunks(4).zip(expected.chunks(4)).enumerate() {
            assert_eq!(f, e, "{name} value {i}");
        }
    }
}

#[test]
fn many_blocks_are_the_same_as_one_after_the_other() {
    // More than one task of the pool, with a length that no task size divides.
    let block: Vec<u8> = (0..18u8).map(|b| if b == 1 { 0x2c } else { b.wrapping_mul(37) }).collect();
    let count = 5 * 1024 + 7;
    let many: Vec<u8> = (0..count)
        .flat_map(|i| {
            let mut b = block.clone();
            b[2] = i as u8;
            b
        })
        .collect();
    let values = dequantize(GgmlType::Q4_0, &many).unwrap();
    for (bytes, values) in many.chunks(18).zip(values.chunks(32)) {
        assert_eq!(dequantize(GgmlType::Q4_0, bytes).unwrap(), values);
    }
}

#[test]
fn part_of_a_block_is_an_error() {
    for ggml_type in GgmlType::ALL {
        let data = vec![0; ggml_type.block_bytes() * 2 + 1];
        let message = dequantize(ggml_type, &data).unwrap_err().to_string();
        assert!(message.contains(ggml_type.name()), "{message}");
    }
}

#[test]
fn types_are_found_by_number_and_named_when_unreadable() {
    for ggml_type in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(ggml_type.id()), Some(ggml_type));
        assert_eq!(type_name(ggml_type.id()), ggml_type.name());
    }
    for (id, name) in [(16, "IQ2_XXS"), (19, "IQ1_S"), (21, "IQ3_S"), (4, "number 4")] {
        assert_eq!(GgmlType::from_id(id), None);
        assert_eq!(type_name(id), name);
    }
}
