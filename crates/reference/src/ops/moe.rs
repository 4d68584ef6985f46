//! Mixture of experts.

use cortiq_model::{Expert, ExpertGroups, ModelError, MoeOp, RouterScoring};

use super::linear::matmul;
use super::{Slots, row_of, row_of_mut, sigmoid};
use crate::Model;

/// See [`MoeOp`].
pub(crate) fn moe(model: &Model, slots: &mut Slots, op: &MoeOp) -> Result<(), ModelError> {
    let width = model.width(op.input);
    let mut out = std::mem::take(&mut slots[op.out.0]);
    for index in 0..out.len() / width {
        let x = row_of(&slots[op.input.0], width, index);
        let mut sum = vec![0.0f64; width];
        for (expert, weight) in route(model, op, x)? {
            add_expert(model, op, op.experts[expert], op.intermediate_size, x, weight, &mut sum)?;
        }
        if let Some(shared) = op.shared {
            let mut weight = [0.0; 1];
            let weight = match shared.gate {
                Some(gate) => {
                    matmul(model, x, gate, None, &mut weight)?;
                    sigmoid(f64::from(weight[0]))
                }
                None => 1.0,
            };
            add_expert(model, op, shared.expert, shared.intermediate_size, x, weight, &mut sum)?;
        }
        for (y, s) in row_of_mut(&mut out, width, index).iter_mut().zip(&sum) {
            *y = *s as f32;
        }
    }
    slots[op.out.0] = out;
    Ok(())
}

/// `sum += weight * expert(x)`.
fn add_expert(
    model: &Model,
    op: &MoeOp,
    expert: Expert,
    width: usize,
    x: &[f32],
    weight: f64,
    sum: &mut [f64],
) -> Result<(), ModelError> {
    let (mut gate, mut up, mut down) = (vec![0.0; width], vec![0.0; width], vec![0.0; sum.len()]);
    matmul(model, x, expert.gate, None, &mut gate)?;
    matmul(model, x, expert.up, None, &mut up)?;
    gate.iter_mut().zip(&up).for_each(|(g, u)| *g = op.activation.apply(*g) * u);
    matmul(model, &gate, expert.down, None, &mut down)?;
    sum.iter_mut().zip(&down).for_each(|(s, d)| *s += weight * f64::from(*d));
    Ok(())
}

/// The chosen experts of one position with their weights, best first.
fn route(model: &Model, op: &MoeOp, x: &[f32]) -> Result<Vec<(usize, f64)>, ModelError> {
    let mut logits = vec![0.0; op.experts.len()];
    matmul(model, x, op.router, None, &mut logits)?;
    if logits.iter().any(|l| l.is_nan()) {
        return Err(ModelError::Executor("the router produced NaN".to_owned()));
    }
    let scores = scores(op.scoring, &logits);
    let bias = op.selection_bias.map(|id| model.vector(id));
    let keys: Vec<f64> =
        scores.iter().enumerate().map(|(e, s)| s + bias.map_or(0.0, |bias| f64::from(bias[e]))).collect();
    let mut candidates = allowed(&keys, op.groups);
    // A stable sort: of equal keys the lower index stays first.
    candidates.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
    candidates.truncate(op.top_k);
    let total: f64 = candidates.iter().map(|&e| scores[e]).sum();
    let divisor = op.normalise.map_or(1.0, |eps| total + eps);
    Ok(candidates.into_iter().map(|e| (e, scores[e] / divisor * f64::from(op.scale))).collect())
}

fn scores(scoring: RouterScoring, logits: &[f32]) -> Vec<f64> {
    match scoring {
        RouterScoring::Sigmoid => logits.iter().map(|l| sigmoid(f64::from(*l))).collect(),
        RouterScoring::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: Vec<f64> = logits.iter().map(|l| f64::from(l - max).exp()).collect();
            let total: f64 = exps.iter().sum();
            exps.into_iter().map(|e| e / total).collect()
        }
    }
}

/// Experts that may be chosen, ascending: all, or those of the groups whose two best keys have the largest sums.
fn allowed(keys: &[f64], groups: Option<ExpertGroups>) -> Vec<usize> {
    let Some(groups) = groups else { return (0..keys.len()).collect() };
    let size = keys.len() / groups.count;
    let rank: Vec<f64> = keys
        .chunks_exact(size)
        .map(|group| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.iter().take(2).sum()
        })
        .collect();
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|&a, &b| rank[b].total_cmp(&rank[a]));
    order.truncate(groups.kept);
    (0..keys.len()).filter(|e| order.contains(&(e / size))).collect()
}
