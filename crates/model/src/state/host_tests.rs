use super::*;

const WIDE: KvLayer = KvLayer { kv_heads: 2, key_dim: 4, value_dim: 4, window: None };
const LATENT: KvLayer = KvLayer { kv_heads: 1, key_dim: 8, value_dim: 0, window: None };
const BLOCK_BYTES: usize = 4 * BLOCK * (2 * 8 + 8);

fn limits(max_bytes: usize) -> StateLimits {
    StateLimits { max_positions: 200, max_bytes }
}

fn store(max_blocks: usize) -> HostState {
    HostState::new(&[StateDecl::Kv(WIDE), StateDecl::Kv(LATENT)], limits(max_blocks * BLOCK_BYTES), KvDtype::F32)
}

fn fill(state: &mut HostState, id: SequenceId, from: usize, count: usize, salt: f32) {
    state.append(id, count).unwrap();
    for position in from..from + count {
        for layer in 0..2 {
            let row: Vec<f32> = (0..8).map(|i| salt + (position * 100 + layer * 10 + i) as f32).collect();
            let values: Vec<f32> = row.iter().map(|x| -x).collect();
            let values = if layer == 0 { &values[..] } else { &[] };
            state.write(id, layer, position, &row, values).unwrap();
        }
    }
}

/// First key float of a head at a position; checks the value beside it in layer 0.
fn key(state: &HostState, id: SequenceId, layer: usize, head: usize, position: usize) -> f32 {
    let block = state.blocks(id, layer, position, position + 1).unwrap().next().unwrap();
    let width = [4, 8][layer];
    let key = block.keys(head).to_f32()[(position - block.start) * width];
    if layer == 0 {
        assert_eq!(-key, block.values(head).to_f32()[(position - block.start) * width]);
    } else {
        assert!(block.values(head).count() == 0);
    }
    key
}

#[test]
fn rows_come_back_where_they_were_written() {
    let mut state = store(8);
    let id = state.open().unwrap();
    fill(&mut state, id, 0, 70, 0.0);
    assert_eq!(key(&state, id, 0, 1, 33), 3304.0);
    assert_eq!(key(&state, id, 1, 0, 69), 6910.0);
    let lens: Vec<_> = state.blocks(id, 0, 40, 70).unwrap().map(|b| (b.start, b.len)).collect();
    assert_eq!(lens, [(32, 32), (64, 6)]);
}

#[test]
fn a_snapshot_survives_later_writes() {
    let mut state = store(8);
    let id = state.open().unwrap();
    fill(&mut state, id, 0, 40, 0.0);
    let saved = state.snapshot(id).unwrap();
    fill(&mut state, id, 40, 10, 0.5);
    state.restore(id, saved).unwrap();
    assert_eq!(state.len(id).unwrap(), 40);
    fill(&mut state, id, 40, 1, 0.25);
    let fork = state.open().unwrap();
    state.restore(fork, saved).unwrap();
    fill(&mut state, fork, 40, 1, 0.75);
    assert_eq!(key(&state, id, 0, 0, 40), 4000.25);
    assert_eq!(key(&state, fork, 0, 0, 40), 4000.75);
    assert_eq!(key(&state, fork, 0, 0, 39), 3900.0);
}

#[test]
fn everything_closed_leaves_no_byte_in_use() {
    let recurrent = StateDecl::Recurrent { floats: 5 };
    let layers = [StateDecl::Kv(WIDE), StateDecl::Kv(LATENT), recurrent];
    let mut state = HostState::new(&layers, limits(1 << 20), KvDtype::F32);
    let a = state.open().unwrap();
    fill(&mut state, a, 0, 50, 0.0);
    assert_eq!(state.used_bytes(), HostState::bytes_of_sequence(&layers, 50, KvDtype::F32));
    let saved = state.snapshot(a).unwrap();
    let b = state.open().unwrap();
    state.restore(b, saved).unwrap();
    fill(&mut state, b, 50, 20, 0.0);
    state.truncate(b, 0).unwrap();
    state.close(a).unwrap();
    state.release(saved).unwrap();
    state.close(b).unwrap();
    assert_eq!(state.used_bytes(), 0);
    assert!(state.len(a).is_err() && state.close(b).is_err() && state.release(saved).is_err());
}

#[test]
fn recurrent_slots_are_kept_by_snapshots_and_cannot_be_rewound() {
    let layers = [StateDecl::Recurrent { floats: 2 }, StateDecl::Recurrent { floats: 3 }];
    let mut state = HostState::new(&layers, limits(1 << 12), KvDtype::F32);
    let id = state.open().unwrap();
    state.append(id, 5).unwrap();
    state.recurrent_mut(id, 1).unwrap().copy_from_slice(&[1.0, 2.0, 3.0]);
    let saved = state.snapshot(id).unwrap();
    state.append(id, 1).unwrap();
    state.recurrent_mut(id, 1).unwrap()[0] = 9.0;
    assert!(!state.can_truncate(id, 5).unwrap());
    assert!(matches!(state.truncate(id, 5), Err(ModelError::CannotRewind { from: 6, to: 5 })));
    state.restore(id, saved).unwrap();
    assert_eq!(state.len(id).unwrap(), 5);
    assert_eq!(state.recurrent_mut(id, 1).unwrap(), [1.0, 2.0, 3.0]);
    state.truncate(id, 0).unwrap();
    assert_eq!(state.recurrent_mut(id, 1).unwrap(), [0.0; 3]);
    assert_eq!(state.recurrent_mut(id, 0).unwrap().len(), 2);
    assert!(state.recurrent_mut(id, 2).is_err() && state.blocks(id, 0, 0, 1).is_err());
}

#[test]
fn windowed_layers_keep_only_their_window() {
    let windowed = KvLayer { window: Some(40), ..WIDE };
    let mut state = HostState::new(&[StateDecl::Kv(windowed), StateDecl::Kv(LATENT)], limits(1 << 20), KvDtype::F32);
    let id = state.open().unwrap();
    for position in 0..150 {
        fill(&mut state, id, position, 1, 0.0);
        let from = (position + 1).saturating_sub(40);
        assert!(state.blocks(id, 0, from, position + 1).is_ok(), "position {position}");
    }
    assert!(state.blocks(id, 0, 0, 1).is_err(), "forgotten");
    assert!(state.blocks(id, 1, 0, 150).is_ok(), "not windowed");
    let windowed_blocks = state.sequences[id.0].as_ref().unwrap().blocks[0].iter().flatten().count();
    assert_eq!(windowed_blocks, 2);
    assert!(state.can_truncate(id, 145).unwrap() && !state.can_truncate(id, 60).unwrap());
    state.truncate(id, 145).unwrap();
    fill(&mut state, id, 145, 1, 0.5);
    assert_eq!(key(&state, id, 0, 0, 145), 14500.5);
    state.truncate(id, 0).unwrap();
    fill(&mut state, id, 0, 3, 0.0);
    assert_eq!(key(&state, id, 0, 0, 2), 200.0);
}

#[test]
fn reserved_room_can_be_written_and_is_not_part_of_the_sequence() {
    let mut state = store(8);
    let id = state.open().unwrap();
    fill(&mut state, id, 0, 31, 0.0);
    state.reserve(id, 3).unwrap();
    assert_eq!(state.len(id).unwrap(), 31);
    let saved = state.snapshot(id).unwrap();
    state.write(id, 0, 33, &[7.0; 8], &[-7.0; 8]).unwrap();
    assert_eq!(key(&state, id, 0, 0, 33), 7.0);
    assert!(state.write(id, 0, 64, &[7.0; 8], &[-7.0; 8]).is_err(), "beyond what was reserved");
    fill(&mut state, id, 31, 2, 0.5);
    assert_eq!(key(&state, id, 0, 0, 32), 3200.5);
    state.release(saved).unwrap();
    state.close(id).unwrap();
    assert_eq!(state.used_bytes(), 0);
}

#[test]
fn limits_are_errors_and_change_nothing() {
    let mut state = store(2);
    let id = state.open().unwrap();
    fill(&mut state, id, 0, 20, 0.0);
    assert!(matches!(state.append(id, 181), Err(ModelError::ContextFull { wanted: 201, limit: 200 })));
    assert!(matches!(state.append(id, 45), Err(ModelError::StateFull { .. })));
    assert!(matches!(state.append(id, usize::MAX), Err(ModelError::ContextFull { .. })));
    assert!(state.truncate(id, 21).is_err());
    assert_eq!(state.len(id).unwrap(), 20);
    assert_eq!(state.used_bytes(), BLOCK_BYTES);
}
