//! Storage types of keys and values.

use super::*;
use crate::KvValues;

const HEADS: usize = 2;
const DIM: usize = 6;
const LAYER: KvLayer = KvLayer { kv_heads: HEADS, key_dim: DIM, value_dim: DIM, window: None };
const LATENT: KvLayer = KvLayer { kv_heads: 1, key_dim: 10, value_dim: 0, window: None };

fn layers() -> Vec<StateDecl> {
    vec![StateDecl::Kv(LAYER), StateDecl::Recurrent { floats: 3 }, StateDecl::Kv(LATENT)]
}

fn store(kv: KvDtype) -> HostState {
    HostState::new(&layers(), StateLimits { max_positions: 500, max_bytes: 1 << 20 }, kv)
}

/// Smooth numbers; channels differ in size, as keys do.
fn number(salt: usize, position: usize, i: usize) -> f32 {
    ((position * 31 + i * 17 + salt * 7) as f32 * 0.37).sin() * 10f32.powi((i % 5) as i32 - 2)
}

fn row(salt: usize, position: usize, width: usize) -> Vec<f32> {
    (0..width).map(|i| number(salt, position, i)).collect()
}

fn write(state: &mut HostState, id: SequenceId, position: usize, salt: usize) {
    let (keys, values) = (row(salt, position, HEADS * DIM), row(salt + 1, position, HEADS * DIM));
    state.write(id, 0, position, &keys, &values).unwrap();
    state.write(id, 2, position, &row(salt + 2, position, 10), &[]).unwrap();
}

fn append(state: &mut HostState, id: SequenceId, count: usize, salt: usize) {
    let from = state.len(id).unwrap();
    state.append(id, count).unwrap();
    (from..from + count).for_each(|position| write(state, id, position, salt));
}

/// Keys and values of layer 0, head by head, and the rows of layer 2, of positions `0..to`.
fn read(state: &HostState, id: SequenceId, to: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for block in state.blocks(id, 0, 0, to).unwrap() {
        for head in 0..HEADS {
            all.extend_from_slice(&block.keys(head).to_f32());
            all.extend_from_slice(&block.values(head).to_f32());
        }
    }
    state.blocks(id, 2, 0, to).unwrap().for_each(|block| all.extend_from_slice(&block.keys(0).to_f32()));
    all
}

fn exact(count: usize, salt: usize) -> Vec<f32> {
    let mut state = store(KvDtype::F32);
    let id = state.open().unwrap();
    append(&mut state, id, count, salt);
    read(&state, id, count)
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn names() {
    for kv in KvDtype::ALL {
        assert_eq!(KvDtype::from_name(kv.name()), Some(kv));
    }
    assert_eq!((KvDtype::from_name("q4"), KvDtype::default()), (None, KvDtype::F32));
}

#[test]
fn half_precision_is_the_nearest_and_never_infinite() {
    let mut state = store(KvDtype::F16);
    let id = state.open().unwrap();
    append(&mut state, id, 70, 0);
    let (ours, exact) = (read(&state, id, 70), exact(70, 0));
    // Half a unit in the last place: 2^-11 of the number, and 2^-25 where numbers are subnormal.
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= (b.abs() / 2048.0).max(2f32.powi(-25));
    assert!(ours.iter().zip(&exact).all(near));
    assert!(worst(&ours, &exact) > 0.0);
    let large: Vec<f32> = [1e6, -1e30, f32::NAN, f32::INFINITY, 65504.0, -7.0].repeat(HEADS);
    state.write(id, 0, 3, &large, &large).unwrap();
    let block = state.blocks(id, 0, 0, 4).unwrap().next().unwrap();
    let kept = block.keys(1).skip(3).to_f32();
    assert_eq!((kept[0], kept[1], kept[3], kept[4], kept[5]), (65504.0, -65504.0, f32::INFINITY, 65504.0, -7.0));
    assert!(kept[2].is_nan());
}

/// Scales of the quantised block `number` of layer 0, head 1: of its keys per channel, of its values per row.
fn bounds(number: usize, salt: usize) -> (Vec<f32>, Vec<f32>) {
    let positions = number * BLOCK..(number + 1) * BLOCK;
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0f32, |m, x| m.max(x.abs()));
    let keys =
        (0..DIM).map(|i| largest(&mut positions.clone().map(|p| row(salt, p, HEADS * DIM)[DIM + i])) / 127.0).collect();
    let values =
        positions.clone().map(|p| largest(&mut row(salt + 1, p, HEADS * DIM)[DIM..].iter().copied()) / 127.0).collect();
    (keys, values)
}

#[test]
fn quantised_keys_have_a_scale_per_channel_and_values_one_per_row() {
    let mut state = store(KvDtype::Q8);
    let id = state.open().unwrap();
    append(&mut state, id, 100, 0);
    for (number, block) in state.blocks(id, 0, 0, 96).unwrap().take(2).enumerate() {
        let (key_bounds, value_bounds) = bounds(number, 0);
        let (keys, values) = (block.keys(1), block.values(1));
        let KvValues::Q8Channel { scales, .. } = keys.values() else { panic!("keys are {keys:?}") };
        assert_eq!(scales, key_bounds);
        let KvValues::Q8Row { scales, .. } = values.values() else { panic!("values are {values:?}") };
        assert_eq!(scales, value_bounds);
        let (keys, values) = (keys.to_f32(), values.to_f32());
        for at in 0..BLOCK {
            let position = number * BLOCK + at;
            let (key, value) = (row(0, position, HEADS * DIM), row(1, position, HEADS * DIM));
            for i in 0..DIM {
                // Half a step and rounding.
                let key_error = (keys[at * DIM + i] - key[DIM + i]).abs();
                assert!(key_error <= key_bounds[i] * 0.5001, "key {position} {i}: {key_error}");
                let value_error = (values[at * DIM + i] - value[DIM + i]).abs();
                assert!(value_error <= value_bounds[at] * 0.5001, "value {position} {i}: {value_error}");
            }
        }
    }
    let latent = state.blocks(id, 2, 0, 100).unwrap().next().unwrap();
    assert!(matches!(latent.keys(0).values(), KvValues::Q8Channel { .. }) && latent.values(0).count() == 0);
}

#[test]
fn the_block_that_is_being_filled_is_exact() {
    let mut state = store(KvDtype::Q8);
    let id = state.open().unwrap();
    for to in 1..=100 {
        append(&mut state, id, 1, 0);
        let last = state.blocks(id, 0, 0, to).unwrap().last().unwrap();
        let start = (to - 1) / BLOCK * BLOCK;
        assert_eq!((last.start, last.len), (start, to - start));
        let expected: Vec<f32> = (start..to).flat_map(|p| row(0, p, HEADS * DIM)[..DIM].to_vec()).collect();
        assert_eq!(&*last.keys(0).to_f32(), expected, "{to}");
    }
}

#[test]
fn numbers_that_are_not_finite_show() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut state = store(KvDtype::Q8);
        let id = state.open().unwrap();
        append(&mut state, id, 70, 0);
        state.truncate(id, 0).unwrap();
        append(&mut state, id, 5, 0);
        state.append(id, 60).unwrap();
        for position in 5..65 {
            let mut keys = row(0, position, HEADS * DIM);
            if position == 9 {
                keys[2] = bad;
            }
            state.write(id, 0, position, &keys, &keys).unwrap();
        }
        let block = state.blocks(id, 0, 0, 65).unwrap().next().unwrap();
        assert!(block.keys(0).to_f32()[9 * DIM + 2].is_nan() && block.values(0).to_f32()[9 * DIM + 2].is_nan());
        assert!(block.keys(1).to_f32().iter().all(|x| x.is_finite()));
    }
}

#[test]
fn zeros_stay_zeros() {
    let mut state = store(KvDtype::Q8);
    let id = state.open().unwrap();
    state.append(id, 40).unwrap();
    (0..40).for_each(|p| state.write(id, 0, p, &[0.0; HEADS * DIM], &[0.0; HEADS * DIM]).unwrap());
    let block = state.blocks(id, 0, 0, 40).unwrap().next().unwrap();
    assert!(matches!(block.keys(0).values(), KvValues::Q8Channel { .. }));
    assert!(block.keys(0).to_f32().iter().chain(block.values(1).to_f32().iter()).all(|x| *x == 0.0));
}

#[test]
fn going_back_a_little_loses_nothing() {
    // Guesses cross the end of a block, are taken back, and other tokens follow: as if the guesses had never been.
    for (before, guesses, kept) in [(30, 5, 1), (60, 33, 0), (31, 1, 0), (64, 32, 31), (95, 2, 1)] {
        let (mut guessing, mut plain) = (store(KvDtype::Q8), store(KvDtype::Q8));
        let [a, b] = [&mut guessing, &mut plain].map(|state| state.open().unwrap());
        // Without recurrent layers a sequence can be cut; these states have one, which nothing here writes.
        guessing.sequences[a.0].as_mut().unwrap().recurrent.clear();
        append(&mut guessing, a, before, 0);
        append(&mut guessing, a, guesses, 9);
        guessing.truncate(a, before + kept).unwrap();
        append(&mut guessing, a, 70, 0);
        append(&mut plain, b, before, 0);
        append(&mut plain, b, kept, 9);
        append(&mut plain, b, 70, 0);
        let to = before + kept + 70;
        assert_eq!(read(&guessing, a, to), read(&plain, b, to), "{before} {guesses} {kept}");
    }
}

#[test]
fn going_back_far_costs_a_second_rounding_at_most() {
    let mut state = store(KvDtype::Q8);
    let id = state.open().unwrap();
    state.sequences[id.0].as_mut().unwrap().recurrent.clear();
    append(&mut state, id, 200, 0);
    state.truncate(id, 40).unwrap();
    append(&mut state, id, 1, 0);
    let second: Vec<_> = state.blocks(id, 0, 0, 41).unwrap().collect();
    let (bounds, _) = bounds(1, 0);
    let (ours, position) = (second[1].keys(1).to_f32(), 35);
    for i in 0..DIM {
        let error = (ours[(position - 32) * DIM + i] - row(0, position, HEADS * DIM)[DIM + i]).abs();
        assert!(error <= bounds[i] * 0.5001, "{error}");
    }
    assert_eq!(ours[8 * DIM..9 * DIM], row(0, 40, HEADS * DIM)[DIM..], "new rows are exact");
    append(&mut state, id, 60, 0);
    let block = state.blocks(id, 0, 0, 101).unwrap().nth(1).unwrap();
    let (ours, first) = (block.keys(1).to_f32(), row(0, 35, HEADS * DIM));
    for i in 0..DIM {
        // Two roundings, the second with a scale that the first one's error may have moved a little.
        let error = (ours[3 * DIM + i] - first[DIM + i]).abs();
        assert!(error <= bounds[i] * 1.01, "{error}");
    }
}

#[test]
fn rows_beyond_the_end_are_overwritten() {
    // A prediction head writes guesses into reserved room across the end of a block; later the tokens come.
    let (mut guessing, mut plain) = (store(KvDtype::Q8), store(KvDtype::Q8));
    let [a, b] = [&mut guessing, &mut plain].map(|state| state.open().unwrap());
    append(&mut guessing, a, 30, 0);
    guessing.reserve(a, 6).unwrap();
    (29..36).for_each(|position| write(&mut guessing, a, position, 4));
    write(&mut guessing, a, 29, 0);
    append(&mut guessing, a, 50, 0);
    append(&mut plain, b, 80, 0);
    assert_eq!(read(&guessing, a, 80), read(&plain, b, 80));
}

#[test]
fn a_quantised_block_can_be_written_again() {
    // The head's row of a position comes when the next token is known: the block may be two blocks back by then.
    let mut state = store(KvDtype::Q8);
    let id = state.open().unwrap();
    append(&mut state, id, 100, 0);
    let before = read(&state, id, 64);
    (10..32).for_each(|position| write(&mut state, id, position, 0));
    let after = read(&state, id, 64);
    assert!(worst(&before, &after) <= 0.02, "{}", worst(&before, &after));
    assert_eq!(read(&state, id, 100)[read(&state, id, 100).len() - 10..], row(2, 99, 10));
}

#[test]
fn snapshots_and_forks_are_independent() {
    for kv in KvDtype::ALL {
        let plain = |salts: &[(usize, usize)]| {
            let mut state = store(kv);
            let id = state.open().unwrap();
            salts.iter().for_each(|(count, salt)| append(&mut state, id, *count, *salt));
            let to = state.len(id).unwrap();
            read(&state, id, to)
        };
        let mut state = store(kv);
        let id = state.open().unwrap();
        append(&mut state, id, 45, 0);
        let saved = state.snapshot(id).unwrap();
        append(&mut state, id, 100, 5);
        let fork = state.open().unwrap();
        state.restore(fork, saved).unwrap();
        append(&mut state, fork, 30, 6);
        assert_eq!(read(&state, id, 145), plain(&[(45, 0), (100, 5)]), "{kv:?}");
        assert_eq!(read(&state, fork, 75), plain(&[(45, 0), (30, 6)]), "{kv:?}");
        state.restore(id, saved).unwrap();
        append(&mut state, id, 30, 6);
        assert_eq!(read(&state, id, 75), read(&state, fork, 75), "{kv:?}");
        state.release(saved).unwrap();
        state.close(id).unwrap();
        state.close(fork).unwrap();
        assert_eq!(state.used_bytes(), 0);
    }
}

#[test]
fn bytes_follow_the_type() {
    // Per position and layer: 24 numbers in layer 0, 10 in layer 2; a block has 12 + 64 and 10 scales.
    let cases = [
        (KvDtype::F32, 64 * 34 * 4 + 12),
        (KvDtype::F16, 64 * 34 * 2 + 12),
        (KvDtype::Q8, 64 * 34 + 2 * 86 * 4 + 64 * 34 * 4 + 12),
    ];
    for (kv, bytes) in cases {
        assert_eq!(HostState::bytes_of_sequence(&layers(), 50, kv), bytes, "{kv:?}");
        let limits = StateLimits { max_positions: 500, max_bytes: bytes };
        let mut state = HostState::new(&layers(), limits, kv);
        let id = state.open().unwrap();
        append(&mut state, id, 50, 0);
        assert_eq!(state.used_bytes(), bytes, "{kv:?}");
        append(&mut state, id, 14, 0);
        assert!(matches!(state.append(id, 1), Err(ModelError::StateFull { .. })), "{kv:?}");
        assert!(state.open().is_err(), "{kv:?}");
        state.close(id).unwrap();
        assert_eq!(state.used_bytes(), 0);
    }
}

#[test]
fn recycled_blocks_do_not_leak() {
    for kv in KvDtype::ALL {
        let mut state = store(kv);
        let fresh = {
            let id = state.open().unwrap();
            append(&mut state, id, 90, 0);
            let rows = read(&state, id, 90);
            append(&mut state, id, 60, 8);
            state.close(id).unwrap();
            rows
        };
        let id = state.open().unwrap();
        append(&mut state, id, 90, 0);
        assert_eq!(read(&state, id, 90), fresh, "{kv:?}");
    }
}
