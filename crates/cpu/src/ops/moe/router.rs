//! Which experts a position uses, and with which weights.

use cortiq_model::{ExpertGroups, ModelError, MoeOp, RouterScoring};

use crate::ops::softmax::{sigmoid, softmax};

/// One expert of one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) expert: usize,
    pub(crate) weight: f32,
}

/// Buffers of the choice.
#[derive(Default)]
pub(crate) struct Work {
    keys: Vec<f32>,
    allowed: Vec<bool>,
    groups: Vec<f32>,
    closed: Vec<bool>,
}

/// Position of the largest key that is allowed; the lowest one of equals.
fn best(keys: &[f32], allowed: &[bool]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, key) in keys.iter().enumerate().filter(|(i, _)| allowed[*i]) {
        if best.is_none_or(|b| *key > keys[b]) {
            best = Some(i);
        }
    }
    best
}

/// Appends the `top_k` choices of one position to `choices`, best first. `logits` become scores.
pub(crate) fn choose(
    op: &MoeOp,
    bias: Option<&[f32]>,
    logits: &mut [f32],
    work: &mut Work,
    choices: &mut Vec<Choice>,
) -> Result<(), ModelError> {
    match op.scoring {
        RouterScoring::Softmax => softmax(logits),
        RouterScoring::Sigmoid => logits.iter_mut().for_each(|l| *l = sigmoid(*l)),
    }
    let scores = &*logits;
    work.keys.clear();
    work.keys.extend_from_slice(scores);
    if let Some(bias) = bias {
        work.keys.iter_mut().zip(bias).for_each(|(key, bias)| *key += bias);
    }
    if work.keys.iter().any(|key| key.is_nan()) {
        return Err(ModelError::Executor("the router produced NaN".to_owned()));
    }
    work.allowed.clear();
    work.allowed.resize(scores.len(), true);
    if let Some(groups) = op.groups {
        keep_groups(groups, work);
    }
    let first = choices.len();
    for _ in 0..op.top_k {
        let Some(expert) = best(&work.keys, &work.allowed) else {
            return Err(ModelError::Executor(format!("the router has fewer than {} experts to choose", op.top_k)));
        };
        work.allowed[expert] = false;
        choices.push(Choice { expert, weight: scores[expert] });
    }
    let chosen = &mut choices[first..];
    let divisor = op.normalise.map(|eps| chosen.iter().map(|c| f64::from(c.weight)).sum::<f64>() + eps);
    for choice in chosen {
        let weight = divisor.map_or(choice.weight, |divisor| (f64::from(choice.weight) / divisor) as f32);
        choice.weight = weight * op.scale;
    }
    Ok(())
}

/// Allows only the experts of the groups with the largest sums of their two best keys.
fn keep_groups(groups: ExpertGroups, work: &mut Work) {
    let size = work.keys.len() / groups.count.max(1);
    work.groups.clear();
    work.groups.extend(work.keys.chunks_exact(size.max(1)).map(|keys| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &key in keys {
            if key > first {
                (first, second) = (key, first);
            } else if key > second {
                second = key;
            }
        }
        first + second
    }));
    work.closed.clear();
    work.closed.resize(work.groups.len(), true);
    for _ in 0..groups.kept {
        if let Some(group) = best(&work.groups, &work.closed) {
            work.closed[group] = false;
        }
    }
    for (allowed, closed) in work.allowed.chunks_exact_mut(size.max(1)).zip(&work.closed) {
        allowed.fill(!closed);
    }
}

#[cfg(test)]
mod tests {
    use cortiq_model::{Activation, MatrixId, Slot};

    use super::*;

    fn op(scoring: RouterScoring, top_k: usize) -> MoeOp {
        MoeOp {
            input: Slot(0),
            out: Slot(0),
            router: MatrixId(0),
            scoring,
            selection_bias: None,
            groups: None,
            top_k,
            normalise: None,
            scale: 1.0,
            experts: Vec::new(),
            intermediate_size: 1,
            shared: None,
            activation: Activation::Silu,
        }
    }

    fn run(op: &MoeOp, bias: Option<&[f32]>, logits: &[f32]) -> Vec<(usize, f32)> {
        let mut choices = Vec::new();
        choose(op, bias, &mut logits.to_vec(), &mut Work::default(), &mut choices).unwrap();
        choices.iter().map(|c| (c.expert, c.weight)).collect()
    }

    fn experts(chosen: &[(usize, f32)]) -> Vec<usize> {
        chosen.iter().map(|c| c.0).collect()
    }

    #[test]
    fn softmax_is_over_all_experts_and_best_come_first() {
        let ln = |x: f32| x.ln();
        let logits = [ln(1.0), ln(4.0), ln(2.0), ln(1.0)];
        let chosen = run(&op(RouterScoring::Softmax, 2), None, &logits);
        assert_eq!(experts(&chosen), [1, 2]);
        assert!((chosen[0].1 - 0.5).abs() < 1e-6 && (chosen[1].1 - 0.25).abs() < 1e-6);
        let normalised = MoeOp { normalise: Some(0.0), scale: 3.0, ..op(RouterScoring::Softmax, 2) };
        let chosen = run(&normalised, None, &logits);
        assert!((chosen[0].1 - 2.0).abs() < 1e-6 && (chosen[1].1 - 1.0).abs() < 1e-6);
        let with_eps = MoeOp { normalise: Some(0.25), ..op(RouterScoring::Softmax, 2) };
        assert!((run(&with_eps, None, &logits)[0].1 - 0.5).abs() < 1e-6);
    }

    #[test]
    fn equal_scores_go_to_the_lower_index() {
        for scoring in [RouterScoring::Softmax, RouterScoring::Sigmoid] {
            assert_eq!(experts(&run(&op(scoring, 3), None, &[0.5, 1.0, 0.5, 1.0, 0.5])), [1, 3, 0]);
            assert_eq!(experts(&run(&op(scoring, 2), None, &[0.0; 4])), [0, 1]);
        }
    }

    #[test]
    fn a_bias_chooses_but_does_not_weigh() {
        let chosen = run(&op(RouterScoring::Sigmoid, 2), Some(&[0.0, 0.0, 5.0]), &[0.0, 2.0, -2.0]);
        assert_eq!(experts(&chosen), [2, 1]);
        assert_eq!(chosen[0].1, sigmoid(-2.0));
    }

    #[test]
    fn only_kept_groups_are_chosen_from() {
        // The best expert is in a group whose second is poor: 0.9 + 0.1 < 0.6 + 0.5.
        let logit = |p: f32| (p / (1.0 - p)).ln();
        let logits: Vec<f32> = [0.9, 0.1, 0.6, 0.5, 0.3, 0.2].iter().map(|p| logit(*p)).collect();
        let grouped = |kept| MoeOp { groups: Some(ExpertGroups { count: 3, kept }), ..op(RouterScoring::Sigmoid, 2) };
        assert_eq!(experts(&run(&grouped(1), None, &logits)), [2, 3]);
        assert_eq!(experts(&run(&grouped(2), None, &logits)), [0, 2]);
        // The bias counts in the rank of a group.
        assert_eq!(experts(&run(&grouped(1), Some(&[0.0, 0.0, 0.0, 0.0, 1.0, 1.0]), &logits)), [4, 5]);
        // Equal groups: the lower one.
        assert_eq!(experts(&run(&grouped(1), None, &[0.0; 6])), [0, 1]);
    }

    #[test]
    fn scores_that_are_no_numbers_are_an_error() {
        for (scoring, logits) in [
            (RouterScoring::Softmax, [0.0, f32::NAN]),
            (RouterScoring::Sigmoid, [0.0, f32::NAN]),
            (RouterScoring::Softmax, [0.0, f32::INFINITY]),
        ] {
            let mut choices = Vec::new();
            let error =
                choose(&op(scoring, 1), None, &mut logits.to_vec(), &mut Work::default(), &mut choices).unwrap_err();
            assert!(error.to_string().contains("router produced NaN"), "{error}");
        }
    }
}
