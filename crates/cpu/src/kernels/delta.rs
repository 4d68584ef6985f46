//! Steps of the gated delta rule.

use super::tile::{LANES, Lanes};

/// Tokens of one head, one after the other: with `s = decay * state`
/// `d = beta * (v - sᵀ k)`, `state = s + k dᵀ`, `v = stateᵀ q`.
///
/// Bytes: the state is read and written once, in strips of 32 columns (columns do not depend on each other), and a
/// strip stays in the L1 cache for all tokens.
pub(crate) struct DeltaSteps<'a> {
    /// `[key_dim, value_dim]`.
    pub(crate) state: &'a mut [f32],
    /// `[tokens, key_dim]`.
    pub(crate) q: &'a [f32],
    /// `[tokens, key_dim]`.
    pub(crate) k: &'a [f32],
    /// `[tokens, value_dim]`: values, then outputs.
    pub(crate) v: &'a mut [f32],
    /// Per token, all 1 or less.
    pub(crate) decay: &'a [f32],
    /// Per token.
    pub(crate) beta: &'a [f32],
    /// `k · q` per token.
    pub(crate) kq: &'a [f32],
    /// Width of a key.
    pub(crate) key_dim: usize,
    /// Width of a value.
    pub(crate) value_dim: usize,
}

/// See [`super::Isa::delta_steps`].
#[inline(always)]
pub(super) fn delta_steps<V: Lanes>(mut steps: DeltaSteps<'_>) {
    let mut col = 0;
    while col + 4 * LANES <= steps.value_dim {
        strip::<V, 4>(&mut steps, col);
        col += 4 * LANES;
    }
    while col + LANES <= steps.value_dim {
        strip::<V, 1>(&mut steps, col);
        col += LANES;
    }
    for col in col..steps.value_dim {
        column::<V>(&mut steps, col);
    }
}

/// `N` vectors of columns from `col` on, all tokens. The output is `decay (stateᵀ q) + (k · q) d`, which needs the
/// state before the update only.
#[inline(always)]
fn strip<V: Lanes, const N: usize>(steps: &mut DeltaSteps<'_>, col: usize) {
    let width = steps.value_dim;
    for t in 0..steps.decay.len() {
        let at = t * steps.key_dim..(t + 1) * steps.key_dim;
        let (q, k) = (&steps.q[at.clone()], &steps.k[at]);
        let (mut seen, mut out) = ([V::zero(); N], [V::zero(); N]);
        for ((row, k), q) in steps.state.chunks_exact(width).zip(k).zip(q) {
            let row = row[col..col + N * LANES].as_chunks::<LANES>().0;
            let (k, q) = (V::splat(*k), V::splat(*q));
            for n in 0..N {
                let s = V::load(&row[n]);
                seen[n] = seen[n].add_product(k, s);
                out[n] = out[n].add_product(q, s);
            }
        }
        let (decay, kq) = (V::splat(steps.decay[t]), V::splat(steps.kq[t]));
        let (beta, minus_decay) = (V::splat(steps.beta[t]), V::splat(-steps.decay[t]));
        let values = steps.v[t * width + col..][..N * LANES].as_chunks_mut::<LANES>().0;
        let mut d = [V::zero(); N];
        for n in 0..N {
            d[n] = V::load(&values[n]).add_product(minus_decay, seen[n]).times(beta);
            out[n].times(decay).add_product(kq, d[n]).store(&mut values[n]);
        }
        for (row, k) in steps.state.chunks_exact_mut(width).zip(k) {
            let row = row[col..col + N * LANES].as_chunks_mut::<LANES>().0;
            let k = V::splat(*k);
            for n in 0..N {
                V::load(&row[n]).times(decay).add_product(k, d[n]).store(&mut row[n]);
            }
        }
    }
}

/// One column that is left over.
#[inline(always)]
fn column<V: Lanes>(steps: &mut DeltaSteps<'_>, col: usize) {
    let width = steps.value_dim;
    for t in 0..steps.decay.len() {
        let at = t * steps.key_dim..(t + 1) * steps.key_dim;
        let (q, k) = (&steps.q[at.clone()], &steps.k[at]);
        let (mut seen, mut out) = (0.0, 0.0);
        for ((row, k), q) in steps.state.chunks_exact(width).zip(k).zip(q) {
            seen = V::scalar_add_product(seen, *k, row[col]);
            out = V::scalar_add_product(out, *q, row[col]);
        }
        let (decay, value) = (steps.decay[t], &mut steps.v[t * width + col]);
        let d = V::scalar_add_product(*value, -decay, seen) * steps.beta[t];
        *value = V::scalar_add_product(out * decay, steps.kq[t], d);
        for (row, k) in steps.state.chunks_exact_mut(width).zip(k) {
            row[col] = V::scalar_add_product(row[col] * decay, *k, d);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn wave(n: usize, salt: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37 + salt).sin() * 0.5).collect()
    }

    /// The rule as it is written, in f64.
    fn plain(state: &mut [f64], q: &[f32], k: &[f32], v: &[f32], decay: f32, beta: f32) -> Vec<f64> {
        let width = v.len();
        state.iter_mut().for_each(|s| *s *= f64::from(decay));
        let sum = |state: &[f64], x: &[f32], c: usize| -> f64 {
            x.iter().enumerate().map(|(i, x)| f64::from(*x) * state[i * width + c]).sum()
        };
        for c in 0..width {
            let d = f64::from(beta) * (f64::from(v[c]) - sum(state, k, c));
            for (i, k) in k.iter().enumerate() {
                state[i * width + c] += f64::from(*k) * d;
            }
        }
        (0..width).map(|c| sum(state, q, c)).collect()
    }

    #[test]
    fn steps_follow_the_rule_for_every_width() {
        for isa in Isa::available() {
            for value_dim in [1, 8, 13, 32, 51] {
                let (key_dim, tokens) = (10, 7);
                let (q, k) = (wave(tokens * key_dim, 1.0), wave(tokens * key_dim, 2.0));
                let values = wave(tokens * value_dim, 3.0);
                let decay: Vec<f32> = (0..tokens).map(|t| [1.0, 0.9, 0.0, 0.5][t % 4]).collect();
                let beta: Vec<f32> = (0..tokens).map(|t| [0.3, 1.0, 0.0][t % 3]).collect();
                let kq: Vec<f32> = (0..tokens)
                    .map(|t| isa.dot(&q[t * key_dim..(t + 1) * key_dim], &k[t * key_dim..(t + 1) * key_dim]))
                    .collect();
                let (mut state, mut v) = (wave(key_dim * value_dim, 4.0), values.clone());
                let mut exact: Vec<f64> = state.iter().map(|s| f64::from(*s)).collect();
                let (state_ref, v_ref) = (&mut state[..], &mut v[..]);
                isa.delta_steps(DeltaSteps {
                    state: state_ref,
                    q: &q,
                    k: &k,
                    v: v_ref,
                    decay: &decay,
                    beta: &beta,
                    kq: &kq,
                    key_dim,
                    value_dim,
                });
                for t in 0..tokens {
                    let (at, of) = (t * key_dim..(t + 1) * key_dim, t * value_dim..(t + 1) * value_dim);
                    let out = plain(&mut exact, &q[at.clone()], &k[at], &values[of.clone()], decay[t], beta[t]);
                    for (ours, exact) in v[of].iter().zip(out) {
                        assert!((f64::from(*ours) - exact).abs() < 1e-5, "{isa:?} {value_dim}");
                    }
                }
                assert!(state.iter().zip(&exact).all(|(s, e)| (f64::from(*s) - e).abs() < 1e-5), "{isa:?}");
            }
        }
    }
}
