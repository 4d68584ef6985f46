//! How sure the routers of a mixture of experts are.

use cortiq_model::{Batch, Executor, ExpertGroups, MoeOp, Op, Program, RouterScoring, Span};
use cortiq_quant::decode;

use crate::Model;

/// Noises that a choice must stand.
const TRIALS: u32 = 64;

/// For each token of a sequence, whether noise of `noise` times the root mean square of a router's logits changes which
/// experts some router chooses for it, as the reference executor finds them.
///
/// # Panics
/// When the reference executor fails.
#[allow(clippy::expect_used)]
pub fn unsure_rows(model: &Model, ids: &[u32], noise: f64) -> Vec<bool> {
    let mut reference = model.reference();
    let program = model.program();
    let mut unsure = vec![false; ids.len()];
    let observer = &mut |op: &Op, slots: &[Vec<f32>]| {
        if let Op::Moe(op) = op {
            let router = Router::of(model, &program, op);
            let input = &slots[op.input.0];
            let rows = input.chunks_exact(input.len() / ids.len());
            unsure.iter_mut().zip(rows).for_each(|(unsure, x)| *unsure |= router.is_unsure(x, noise));
        }
    };
    let sequence = reference.states().open().expect("room for a sequence");
    let span = Span { sequence, start: 0, len: ids.len(), known_len: ids.len() };
    let batch = Batch { tokens: ids, spans: &[span], logit_rows: &[] };
    reference.step_observed(&batch, observer).expect("the step runs");
    unsure
}

struct Router<'a> {
    op: &'a MoeOp,
    /// `[experts, hidden_size]`.
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl<'a> Router<'a> {
    #[allow(clippy::expect_used)]
    fn of(model: &Model, program: &Program, op: &'a MoeOp) -> Self {
        let decl = &program.matrices[op.router.0];
        let payload = model.weights.bytes(decl.tensor).expect("the router is there");
        let weights = decode(decl.dtype, payload, decl.rows, decl.cols).expect("the router is whole");
        let bias = op.selection_bias.map_or_else(|| vec![0.0; decl.rows], |id| program.vectors[id.0].clone());
        Self { op, weights, bias }
    }

    fn is_unsure(&self, x: &[f32], noise: f64) -> bool {
        let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        let logits: Vec<f64> = self.weights.chunks_exact(x.len()).map(dot).collect();
        let size = (logits.iter().map(|l| l * l).sum::<f64>() / logits.len() as f64).sqrt();
        let mut state = 1u32;
        let mut noisy = || -> Vec<f64> {
            let mut random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f64::from(state >> 8) / f64::from(1 << 23) - 1.0
            };
            logits.iter().map(|l| l + noise * size * random()).collect()
        };
        let chosen = self.choice(&logits);
        (0..TRIALS).any(|_| self.choice(&noisy()) != chosen)
    }

    /// The chosen experts, ascending.
    fn choice(&self, logits: &[f64]) -> Vec<usize> {
        // Softmax keeps the order, and nothing is added to its scores in any model here.
        let score = |logit: f64| match self.op.scoring {
            RouterScoring::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            RouterScoring::Softmax => logit,
        };
        let keys: Vec<f64> = logits.iter().zip(&self.bias).map(|(l, b)| score(*l) + f64::from(*b)).collect();
        let mut experts = best(&keys, keys.len());
        if let Some(ExpertGroups { count, kept }) = self.op.groups {
            let size = keys.len() / count;
            let rank = |group: &[f64]| best(group, 2).iter().map(|&e| group[e]).sum::<f64>();
            let ranks: Vec<f64> = keys.chunks_exact(size).map(rank).collect();
            let groups = best(&ranks, kept);
            experts.retain(|e| groups.contains(&(e / size)));
        }
        experts.truncate(self.op.top_k);
        experts.sort_unstable();
        experts
    }
}

/// Places of the largest keys, best first.
fn best(keys: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    order.truncate(count);
    order
}
