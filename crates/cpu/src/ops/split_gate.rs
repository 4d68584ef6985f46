//! Queries and gates of one projection, taken apart.

use cortiq_model::Slot;

use crate::executor::Run;

/// Per head `[query | gate]`, both `head_dim` wide, to `q` and `gate`.
pub(crate) fn split_gate(run: &mut Run, input: Slot, q: Slot, gate: Slot, head_dim: usize) {
    let (mut queries, mut gates) = (std::mem::take(&mut run.slots[q.0]), std::mem::take(&mut run.slots[gate.0]));
    let heads = run.slots[input.0].chunks_exact(2 * head_dim);
    for ((both, q), gate) in heads.zip(queries.chunks_exact_mut(head_dim)).zip(gates.chunks_exact_mut(head_dim)) {
        q.copy_from_slice(&both[..head_dim]);
        gate.copy_from_slice(&both[head_dim..]);
    }
    run.slots[q.0] = queries;
    run.slots[gate.0] = gates;
}

#[cfg(test)]
mod tests {
    use cortiq_model::Op;

    use crate::ops::testing::{Bench, wave};

    #[test]
    fn every_head_is_cut_in_two() {
        let mut bench = Bench::new(3);
        let both = bench.input(wave(3 * 8, 1.0), 8);
        let (q, gate) = (bench.slot(4), bench.slot(4));
        bench.op(Op::SplitGate { input: both, q, gate, head_dim: 2 });
        let input = wave(3 * 8, 1.0);
        let mut executor = bench.executor(1);
        executor.step(3).unwrap();
        let pick = |offset: usize| -> Vec<f32> {
            (0..3 * 2).flat_map(|h| input[h * 4 + offset..h * 4 + offset + 2].to_vec()).collect()
        };
        assert_eq!(executor.slot(q), pick(0));
        assert_eq!(executor.slot(gate), pick(2));
    }
}
