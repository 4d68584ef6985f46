use cortiq_model::{HostState, KvDtype, KvLayer, SequenceState, StateDecl, StateLimits};

use crate::Isa;

fn values(n: usize, salt: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + salt * 13) as f32).sin() * (1.0 + (i % 7) as f32)).collect()
}

/// A store with one block of keys and values of `width`.
fn filled(kv: KvDtype, width: usize) -> (HostState, cortiq_model::SequenceId) {
    let layer = KvLayer { kv_heads: 1, key_dim: width, value_dim: width, window: None };
    let limits = StateLimits { max_positions: 64, max_bytes: 1 << 20 };
    let mut state = HostState::new(&[StateDecl::Kv(layer)], limits, kv);
    let id = state.open().unwrap();
    state.append(id, 33).unwrap();
    for position in 0..33 {
        state.write(id, 0, position, &values(width, position), &values(width, position + 50)).unwrap();
    }
    (state, id)
}

#[test]
fn every_storage_type_equals_the_decoded_rows() {
    for isa in Isa::available() {
        for kv in KvDtype::ALL {
            for width in [1, 6, 8, 43, 64, 80] {
                let (state, id) = filled(kv, width);
                let block = state.blocks(id, 0, 0, 33).unwrap().next().unwrap();
                for rows in [block.keys(0), block.values(0), block.keys(0).skip(9), block.values(0).skip(31)] {
                    let plain = rows.to_f32();
                    let (x, weights) = (values(width, 99), values(rows.count(), 98));
                    let mut scratch = vec![0.0; width.max(32)];
                    let mut expected = vec![0.0; rows.count()];
                    isa.dot_rows(&plain, &x, width, &mut expected);
                    let mut dots = vec![0.0; rows.count()];
                    isa.dot_kv(rows, &x, &mut scratch, &mut dots);
                    let mut sums = values(width, 97);
                    let mut expected_sums = sums.clone();
                    for (row, weight) in plain.chunks_exact(width).zip(&weights) {
                        isa.add_scaled(&mut expected_sums, *weight, row);
                    }
                    isa.add_kv(rows, &weights, &mut scratch, &mut sums);
                    let mut buffer = vec![0.0; 32 * width];
                    assert_eq!(isa.kv_in_f32(rows, &mut buffer), &*plain, "{isa:?} {kv:?} {width}");
                    if kv == KvDtype::Q8 {
                        // The scales are applied elsewhere, so the last bits differ.
                        let near = |a: &f32, b: &f32| (a - b).abs() <= 1e-5 * (width as f32 * 50.0);
                        assert!(dots.iter().zip(&expected).all(|(a, b)| near(a, b)), "{isa:?} {width}");
                        assert!(sums.iter().zip(&expected_sums).all(|(a, b)| near(a, b)), "{isa:?} {width}");
                    } else {
                        assert_eq!((dots, sums), (expected, expected_sums), "{isa:?} {kv:?} {width}");
                    }
                }
            }
        }
    }
}
