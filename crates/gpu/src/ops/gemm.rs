//! Products of many tokens with a matrix: the variants, which of them a device gets, and their dispatches.

use super::linear::{Product, output_binds, weight_binds, with_outputs};
use super::{Codes, quantise, source};
use crate::kernel::{Bind, StepSize, WORKGROUP, fold};
use crate::plan::{Activation, Quantised, Recorder, Rows};
use crate::shader::{Source, wgsl};
use crate::weights::{Layout, Piece};
use crate::{Caps, GpuError, Precision};

/// How a variant computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// f32, 8 by 8 sums per thread.
    Plain,
    /// f32, 4 by 4 sums per thread.
    Small,
    /// int8 activations and codes, exact inside a group of 32.
    Int8,
    /// Matrix units: f16 inputs, f32 sums.
    Coop(Coop),
}

/// Shape of a variant on matrix units; `shaders/gemm_coop.wgsl` has the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coop {
    /// 8 or 16.
    size: u32,
    /// Subgroups along tokens and along rows.
    waves: [u32; 2],
    /// Tiles in workgroup memory that alternate.
    stages: u32,
    /// What the tiles in workgroup memory are made of.
    staging: Staging,
}

/// Elements of the tiles that matrix units read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staging {
    /// Four f16 at once.
    Quads,
    /// Single f16.
    Scalars,
}

/// Lanes of a subgroup that the variants on matrix units are written for.
const LANES: u32 = 32;

/// A way to multiply many tokens with a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// For benchmarks and tests.
    pub(crate) name: &'static str,
    kind: Kind,
}

const fn coop(name: &'static str, size: u32, waves: [u32; 2], stages: u32, staging: Staging) -> Variant {
    Variant { name, kind: Kind::Coop(Coop { size, waves, stages, staging }) }
}

/// f32 for few tokens or rows.
const SMALL: Variant = Variant { name: "small", kind: Kind::Small };
/// f32.
const PLAIN: Variant = Variant { name: "plain", kind: Kind::Plain };
/// int8, for layouts of codes.
const INT8: Variant = Variant { name: "int8", kind: Kind::Int8 };
/// 64 tokens by 64 rows on units of 16.
const COOP16_SMALL: Variant = coop("coop16 1x2", 16, [1, 2], 1, Staging::Quads);
/// 128 tokens by 128 rows on units of 16.
const COOP16: Variant = coop("coop16 2x4", 16, [2, 4], 1, Staging::Quads);
/// 64 tokens by 64 rows on units of 8.
const COOP8: Variant = coop("coop8 2x4", 8, [2, 4], 1, Staging::Scalars);

/// Every variant. Which of them run by default is decided by [`Choice::of`]; the others are there to be measured.
#[cfg(any(test, feature = "lab"))]
pub(crate) const VARIANTS: [Variant; 12] = [
    SMALL,
    PLAIN,
    INT8,
    COOP16_SMALL,
    COOP16,
    coop("coop16 2x4 scalars", 16, [2, 4], 1, Staging::Scalars),
    coop("coop16 1x4", 16, [1, 4], 1, Staging::Quads),
    coop("coop16 1x4 two stages", 16, [1, 4], 2, Staging::Quads),
    coop("coop16 2x2", 16, [2, 2], 1, Staging::Quads),
    coop("coop16 2x2 two stages", 16, [2, 2], 2, Staging::Quads),
    COOP8,
    coop("coop8 2x2", 8, [2, 2], 1, Staging::Scalars),
];

impl Coop {
    /// Tokens and rows of a tile.
    pub(crate) fn tile(self) -> [u32; 2] {
        [self.waves[0] * 4 * self.size, self.waves[1] * 2 * self.size]
    }

    /// Bytes of workgroup memory: lines of 32 columns take 80 bytes; finished sums leave through one matrix a wave, and
    /// the teams have a float each.
    fn memory(self) -> u32 {
        let [tokens, rows] = self.tile();
        let waves = self.waves[0] * self.waves[1];
        self.stages * (tokens + rows) * 80 + waves * (self.size * self.size + 1) * 4
    }

    /// Whether a device can run it.
    fn fits(self, caps: &Caps) -> bool {
        caps.coop.is_some_and(|unit| unit.size == self.size)
            && caps.f16
            && caps.subgroup == Some(LANES)
            && self.memory() <= caps.workgroup_memory
    }

    fn threads(self) -> u32 {
        self.waves[0] * self.waves[1] * LANES
    }

    /// The shader, but for the lines, the weights and the outputs.
    pub(super) fn shader(self, rec: &Recorder<'_>, name: &'static str) -> Source {
        source(rec, name, wgsl!("gemm_coop.wgsl"), self.threads())
            .enable("f16")
            .enable("wgpu_cooperative_matrix")
            .with("WAVES_X", self.waves[0])
            .with("WAVES_Y", self.waves[1])
            .with("STAGES", self.stages)
            .part(match (self.size, self.staging) {
                (8, _) => wgsl!("lib/coop8.wgsl"),
                (_, Staging::Quads) => wgsl!("lib/coop16.wgsl"),
                (_, Staging::Scalars) => wgsl!("lib/coop16_scalar.wgsl"),
            })
    }
}

impl Variant {
    /// Whether a device can run it.
    pub(crate) fn fits(&self, caps: &Caps) -> bool {
        match self.kind {
            Kind::Plain | Kind::Small | Kind::Int8 => true,
            Kind::Coop(coop) => coop.fits(caps),
        }
    }

    /// Whether it multiplies with matrices in a layout.
    pub(crate) fn takes(&self, layout: Layout) -> bool {
        // The columns' factors would need a copy of the activations for each stacked matrix.
        self.kind != Kind::Int8 || (layout.takes_int8() && layout != Layout::Q8Field)
    }

    /// Tokens and rows of a tile.
    fn tile(&self) -> [u32; 2] {
        match self.kind {
            Kind::Plain => [128, 128],
            Kind::Small => [32, 32],
            Kind::Int8 => [64, 64],
            Kind::Coop(coop) => coop.tile(),
        }
    }

    fn threads(&self) -> u32 {
        match self.kind {
            Kind::Plain | Kind::Int8 => WORKGROUP,
            Kind::Small => 64,
            Kind::Coop(coop) => coop.threads(),
        }
    }

    /// The shader, but for the weights and the outputs.
    fn shader(&self, rec: &Recorder<'_>) -> Source {
        match self.kind {
            Kind::Plain => source(rec, "gemm", wgsl!("gemm.wgsl"), self.threads()),
            Kind::Small => source(rec, "gemm_small", wgsl!("gemm_small.wgsl"), self.threads()),
            Kind::Int8 => source(rec, "gemm_int8", wgsl!("gemm_int8.wgsl"), self.threads()),
            Kind::Coop(coop) => coop.shader(rec, "gemm_coop").part(wgsl!("lib/coop_tokens.wgsl")),
        }
    }
}

/// The variants that a device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    small: Variant,
    large: Variant,
    /// Fewest tokens for the large one.
    large_from: u32,
}

impl Choice {
    const F32: Self = Self { small: SMALL, large: PLAIN, large_from: 65 };

    /// One variant for all numbers of tokens.
    const fn always(variant: Variant) -> Self {
        Self { small: variant, large: variant, large_from: 0 }
    }

    /// The order of preference: matrix units where the arithmetic may be f16, int8 where the device multiplies four
    /// at once, then f32.
    fn of(caps: &Caps, precision: Precision, layout: Layout) -> Self {
        let fast = [Self { small: COOP16_SMALL, large: COOP16, large_from: 65 }, Self::always(COOP8)];
        let runs = |choice: &Self| choice.small.fits(caps) && choice.large.fits(caps);
        let units = fast.into_iter().find(runs).filter(|_| precision == Precision::Fast);
        // Metal has no such instruction, and gets matrix units.
        let int8 = precision == Precision::Fast && INT8.takes(layout) && caps.adapter.backend != "metal";
        match units {
            Some(choice) => choice,
            None if int8 => Self::always(INT8),
            None => Self::F32,
        }
    }

    /// The choice for inputs that need more than one code: f16 does for them, an int8 code does not.
    fn for_inputs(self, codes: Codes) -> Self {
        if self.large == INT8 && codes == Codes::Two { Self::F32 } else { self }
    }
}

/// The shape for tiles of an expert's jobs, where matrix units may be used: all lines in one subgroup, which leaves out
/// those without jobs, or else the common one.
pub(crate) fn grouped_choice(caps: &Caps, precision: Precision) -> Option<Coop> {
    let fast = [
        Coop { size: 16, waves: [1, 4], stages: 1, staging: Staging::Quads },
        Coop { size: 8, waves: [2, 4], stages: 1, staging: Staging::Scalars },
    ];
    fast.into_iter().find(|coop| coop.fits(caps)).filter(|_| precision == Precision::Fast)
}

/// Names of the variants for up to 64 tokens and for more.
pub(crate) fn gemm_choice(caps: &Caps, precision: Precision, layout: Layout) -> [&'static str; 2] {
    let choice = Choice::of(caps, precision, layout);
    [choice.small.name, choice.large.name]
}

/// Records a product of many tokens. Two variants stand in the plan where they differ; the number of tokens of a step
/// gives one of them an empty grid.
pub(super) fn gemm(rec: &mut Recorder<'_>, product: &Product<'_>) -> Result<(), GpuError> {
    let choice = Choice::of(rec.gpu.caps(), rec.precision, product.matrix.layout).for_inputs(rec.codes);
    if choice.large_from > 0 {
        run(rec, product, &choice.small, Tokens { from: 0, to: choice.large_from })?;
    }
    run(rec, product, &choice.large, Tokens { from: choice.large_from, to: u32::MAX })
}

/// Records a product with one variant for all numbers of tokens.
#[cfg(feature = "lab")]
pub(crate) fn gemm_with(rec: &mut Recorder<'_>, product: &Product<'_>, variant: &Variant) -> Result<(), GpuError> {
    run(rec, product, variant, Tokens { from: 0, to: u32::MAX })
}

/// Numbers of tokens that a dispatch is for: `from..to`.
#[derive(Clone, Copy)]
struct Tokens {
    from: u32,
    to: u32,
}

impl Tokens {
    /// `grid` for these numbers of tokens, nothing for others.
    fn grid(self, tokens: u32, grid: impl Fn(u32) -> [u32; 3]) -> [u32; 3] {
        if (self.from..self.to).contains(&tokens) { grid(tokens) } else { [0; 3] }
    }
}

fn run(rec: &mut Recorder<'_>, product: &Product<'_>, variant: &Variant, tokens: Tokens) -> Result<(), GpuError> {
    let input = match variant.kind {
        Kind::Plain | Kind::Small => Input::Plain,
        Kind::Int8 => Input::Int8(int8_copy(rec, product)?),
        Kind::Coop(_) => {
            let rows = product.rows;
            let live = move |size: &StepSize| {
                let count = rows.count(size);
                if (tokens.from..tokens.to).contains(&count) { count } else { 0 }
            };
            Input::Half(half_copy(rec, product.x, live)?)
        }
    };
    for piece in &product.matrix.pieces {
        tiles(rec, product, piece, variant, &input, tokens)?;
    }
    Ok(())
}

/// What a variant reads as activations.
enum Input {
    Plain,
    Int8(Quantised),
    Half(wgpu::Buffer),
}

/// The int8 copy of a product's input.
fn int8_copy(rec: &mut Recorder<'_>, product: &Product<'_>) -> Result<Quantised, GpuError> {
    let (bytes, x) = (product.x.buffer.size() as usize, product.x);
    // One pair of buffers serves all products, like the f16 copy.
    let codes = rec.scratch("int8 copy", 0, bytes / 4)?;
    let scales = rec.scratch("int8 copy scales", 0, bytes / 16)?;
    let copy = Quantised { codes, scales, rows: bytes / (4 * x.stride), per_value: Codes::One };
    quantise(rec, x, None, 1, &copy, product.rows)?;
    Ok(copy)
}

/// The f16 copy of as many rows as `tokens` says: `[tokens, stride]`.
pub(super) fn half_copy(
    rec: &mut Recorder<'_>,
    x: &Activation,
    tokens: impl Fn(&StepSize) -> u32 + Send + 'static,
) -> Result<wgpu::Buffer, GpuError> {
    // One buffer serves all products, since each is finished before the next one's copy is made.
    let copy = rec.scratch("half copy", 0, x.buffer.size() as usize / 2)?;
    let quads = x.stride / 4;
    let source = source(rec, "half_copy", wgsl!("half_copy.wgsl"), WORKGROUP).enable("f16").with("QUADS", quads);
    let across = quads.div_ceil(WORKGROUP as usize) as u32;
    rec.dispatch(&source, &[Bind::read(1, &x.buffer), Bind::write(2, &copy)], move |size| [across, tokens(size), 1])?;
    Ok(copy)
}

/// Adds how sixteen weights are fetched and decoded; see `shaders/fetch/`.
pub(super) fn with_fetch(source: Source, layout: Layout) -> Source {
    source.part(match layout {
        Layout::Q8 => wgsl!("fetch/q8.wgsl"),
        Layout::Q4 => wgsl!("fetch/q4.wgsl"),
        Layout::Q1 | Layout::Q1Overlay => wgsl!("fetch/q1.wgsl"),
        Layout::F16 => wgsl!("fetch/half.wgsl"),
        Layout::F32 | Layout::Bf16 | Layout::Q8Field | Layout::Vbit | Layout::Ternary => wgsl!("fetch/any.wgsl"),
    })
}

/// One piece of the matrix, without its overlay.
fn tiles(
    rec: &mut Recorder<'_>,
    product: &Product<'_>,
    piece: &Piece,
    variant: &Variant,
    input: &Input,
    tokens: Tokens,
) -> Result<(), GpuError> {
    let (layout, cols) = (product.matrix.layout, product.matrix.cols);
    let source = variant.shader(rec).with("ROWS", piece.rows).part(wgsl!("lib/half.wgsl"));
    let source = with_outputs(layout.with_weights(source, cols), product, piece.first_row);
    let source = match input {
        Input::Int8(_) => layout.with_dot(source),
        Input::Plain | Input::Half(_) => with_fetch(source, layout),
    };
    let mut binds = match input {
        Input::Plain => vec![Bind::read(1, &product.x.buffer)],
        Input::Int8(copy) => vec![Bind::read(7, &copy.codes), Bind::read(8, &copy.scales)],
        Input::Half(copy) => vec![Bind::read(7, copy)],
    };
    binds.extend(output_binds(product));
    binds.extend(weight_binds(product, piece));
    let [tile_tokens, tile_rows] = variant.tile();
    let (groups, rows): (u32, Rows) = ((piece.rows as u32).div_ceil(tile_rows), product.rows);
    rec.dispatch(&source, &binds, move |size| {
        tokens.grid(rows.count(size), |tokens| fold(tokens.div_ceil(tile_tokens), groups))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterSummary, CoopShape};

    fn caps(coop: Option<u32>, subgroup: Option<u32>, workgroup_memory: u32) -> Caps {
        let text = String::new;
        let adapter = AdapterSummary { name: text(), backend: text(), driver: text(), software: false, discrete: true };
        Caps {
            adapter,
            subgroup,
            f16: true,
            coop: coop.map(|size| CoopShape { size }),
            timestamps: false,
            max_binding: 1 << 30,
            max_buffer: 1 << 30,
            workgroup_memory,
            max_threads: 1024,
        }
    }

    #[test]
    fn matrix_units_are_used_where_they_are_whole_and_allowed() {
        let name = |caps: &Caps, precision| Choice::of(caps, precision, Layout::F16).large.name;
        let nvidia = caps(Some(16), Some(32), 48 << 10);
        assert_eq!(name(&nvidia, Precision::Fast), "coop16 2x4");
        assert_eq!(name(&nvidia, Precision::Exact), "plain");
        assert_eq!(name(&caps(Some(16), Some(64), 48 << 10), Precision::Fast), "plain", "other subgroups");
        assert_eq!(name(&caps(Some(16), Some(32), 16 << 10), Precision::Fast), "plain", "little memory");
        assert_eq!(name(&caps(Some(8), Some(32), 32 << 10), Precision::Fast), "coop8 2x4");
        let without = caps(None, None, 32 << 10);
        assert_eq!(name(&without, Precision::Fast), "plain");
        assert_eq!(Choice::of(&without, Precision::Fast, Layout::Q4), Choice::always(INT8));
        assert_eq!(Choice::of(&without, Precision::Exact, Layout::Q4).large, PLAIN);
        let tile = |caps: &Caps, precision| grouped_choice(caps, precision).map(Coop::tile);
        assert_eq!(tile(&nvidia, Precision::Fast), Some([64, 128]));
        assert_eq!(tile(&nvidia, Precision::Exact), None);
        assert_eq!(tile(&caps(Some(8), Some(32), 32 << 10), Precision::Fast), Some([64, 64]));
        assert_eq!(tile(&without, Precision::Fast), None);
    }

    #[test]
    fn every_thread_brings_at_most_two_pieces_of_a_tile() {
        for variant in VARIANTS {
            if let Kind::Coop(coop) = variant.kind {
                let most = coop.tile().into_iter().max().unwrap() * 2;
                assert!(most <= 2 * variant.threads(), "{}", variant.name);
                assert!(coop.memory() <= 48 << 10, "{}", variant.name);
            }
        }
    }

    #[test]
    fn variants_have_names_of_their_own() {
        for (i, a) in VARIANTS.iter().enumerate() {
            assert!(VARIANTS[..i].iter().all(|b| a.name != b.name), "{}", a.name);
        }
    }
}
