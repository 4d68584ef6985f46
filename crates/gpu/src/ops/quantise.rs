//! int8 copies of an activation.

use cortiq_model::{Op, Program};

use super::source;
use crate::kernel::{Bind, fold};
use crate::plan::{Activation, Quantised, Recorder, Rows};
use crate::shader::{Source, wgsl};
use crate::{GpuError, Precision};

/// How many int8 codes stand for a value of an activation.
///
/// One is off by up to 1 / 254 of the largest of its group of 32, which products average out. A gated delta net does not:
/// its decays and unit norms keep an error for many tokens, and its gated norm brings outputs that are small by chance
/// to full size together with their error, layer by layer. The norms of latent attention do a little of that.
///
/// Mean KL and least cosine on the fixtures, where docs/design.md §7 asks for 2e-3 and 0.999:
///
/// | model, weights               | one code       | two for the net's own products | two for all    |
/// |------------------------------|----------------|--------------------------------|----------------|
/// | qwen3_5, q8                  | 1.5e-2, 0.930  | 1.7e-3, 0.9990                 | 6.8e-5, 1.0000 |
/// | qwen3_5, q4t                 | 1.5e-2, 0.970  | 2.1e-3, 0.9963                 | 8.3e-5, 1.0000 |
/// | qwen3_5_moe, q8              | 1.9e-2, 0.895  | 2.4e-3, 0.9708                 | 3.6e-5, 1.0000 |
/// | qwen3_next, q8               | 3.1e-2, 0.790  | 4.6e-3, 0.9805                 | 8.1e-5, 1.0000 |
/// | deepseek_v3, q4t, no choice  | 1.9e-3, 0.9987 |                                | 8.0e-5, 1.0000 |
///
/// So it is not enough to spare the projections of a net: whatever reaches the residual stream before one, from
/// attention and FFNs too, goes through it. The head, which nothing follows, keeps one code. A second code costs no bytes
/// of weights: twice the int8 products, and twice the reads of activations from workgroup memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// `x ≈ scale * code`.
    One,
    /// The second one codes what the first leaves, at a 254th of its scale.
    Two,
}

impl Codes {
    /// What products of a program need.
    pub(crate) fn of(program: &Program, precision: Precision) -> Self {
        let amplifies = program.ops.iter().any(|op| matches!(op, Op::GatedDelta(_) | Op::MlaAttention(_)));
        if amplifies && precision == Precision::Fast { Self::Two } else { Self::One }
    }

    /// Their number.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// The constant that packing and multiplying kernels share.
    pub(crate) fn constant(self, source: Source) -> Source {
        source.with("CODES", self.count())
    }

    /// The snippet of a group that products take.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::One => wgsl!("lib/one_code.wgsl"),
            Self::Two => wgsl!("lib/two_codes.wgsl"),
        }
    }
}

/// Threads of a workgroup: few, so that one row spreads over several workgroups.
const THREADS: u32 = 64;

/// Packs `sets` copies of `x`, each times its own factors of the columns when `fields` (`[sets, stride]`) is given.
pub(crate) fn quantise(
    rec: &mut Recorder<'_>,
    x: &Activation,
    fields: Option<&wgpu::Buffer>,
    sets: usize,
    out: &Quantised,
    rows: Rows,
) -> Result<(), GpuError> {
    let groups = x.stride / 32;
    let field = if fields.is_some() { wgsl!("lib/field.wgsl") } else { wgsl!("lib/no_field.wgsl") };
    let source = source(rec, "quantise", wgsl!("quantise.wgsl"), THREADS)
        .with("GROUPS", groups)
        .with("SET_ROWS", out.rows)
        .part(wgsl!("lib/int8.wgsl"))
        .part(field);
    let source = out.per_value.constant(source);
    let mut binds = vec![Bind::read(1, &x.buffer), Bind::write(2, &out.codes), Bind::write(3, &out.scales)];
    binds.extend(fields.map(|fields| Bind::read(4, fields)));
    let across = (groups as u32).div_ceil(THREADS);
    let sets = sets as u32;
    rec.dispatch(&source, &binds, move |size| {
        let [x, y, z] = fold(across, rows.count(size));
        debug_assert_eq!(z, 1, "a step has fewer rows than a grid may have");
        [x, y, sets]
    })
}
