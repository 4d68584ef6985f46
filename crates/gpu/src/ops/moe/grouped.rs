//! Many tokens: the jobs are sorted by expert, so that an expert's weights are decoded once per tile of its jobs.

use cortiq_model::{MatrixId, SharedExpert};

use super::Layer;
use super::experts::{Experts, Pool};
use super::route::with_input;
use crate::GpuError;
use crate::kernel::{Bind, StepSize, WORKGROUP};
use crate::ops::ffn::{glu, with_function};
use crate::ops::gemm::{Coop, grouped_choice, half_copy, with_fetch};
use crate::ops::linear::{Product, Store, product};
use crate::ops::{groups_for, source};
use crate::plan::{Activation, Recorder, Rows};
use crate::shader::{Source, wgsl};
use crate::slots::padded;

/// How tiles are multiplied.
#[derive(Clone, Copy)]
enum Variant {
    /// f32.
    Plain,
    /// Matrix units: f16 inputs, f32 sums.
    Coop(Coop),
}

impl Variant {
    fn of(rec: &Recorder<'_>) -> Self {
        grouped_choice(rec.gpu.caps(), rec.precision).map_or(Self::Plain, Self::Coop)
    }

    /// Jobs and lines of weights of a tile.
    fn tile(self) -> [u32; 2] {
        match self {
            Self::Plain => [32, 128],
            Self::Coop(coop) => coop.tile(),
        }
    }

    /// The products of gate and up between the two kernels.
    fn products(self, rec: &mut Recorder<'_>, rows: usize, width: usize) -> Result<Activation, GpuError> {
        match self {
            Self::Plain => Layer::scratch(rec, "moe sorted products", 0, rows, width),
            Self::Coop(_) => {
                let stride = padded(width);
                let buffer = rec.scratch("moe sorted products, f16", 0, rows * stride * 2)?;
                Ok(Activation { buffer, width, stride })
            }
        }
    }

    /// How the products are kept.
    fn with_kept(self, source: Source) -> Source {
        source.part(match self {
            Self::Plain => wgsl!("lib/moe_float_products.wgsl"),
            Self::Coop(_) => wgsl!("lib/moe_half_products.wgsl"),
        })
    }

    /// The grouped product of a pool with `x`, but for where inputs come from and results go.
    fn shader(self, rec: &Recorder<'_>, name: &'static str, pool: &Pool, x: &Activation) -> Source {
        let [jobs, _] = self.tile();
        let overlay = pool.layout().has_overlay();
        let source = match self {
            Self::Plain => {
                with_input(source(rec, name, wgsl!("moe_gemm.wgsl"), WORKGROUP).with("TILE", jobs), x.stride)
            }
            Self::Coop(coop) => {
                let source = coop.shader(rec, name).with("X_STRIDE4", x.stride / 4).part(wgsl!("lib/coop_jobs.wgsl"));
                let source = with_fetch(source, pool.layout());
                if overlay { source.part(wgsl!("lib/x4_half.wgsl")) } else { source }
            }
        };
        pool.with_weights(source).part(match overlay {
            true => wgsl!("lib/overlay_row.wgsl"),
            false => wgsl!("lib/no_overlay_row.wgsl"),
        })
    }

    /// Bindings of [`Variant::shader`].
    fn binds<'a>(self, pool: &'a Pool, x: &'a wgpu::Buffer, sorted: &'a Sorted) -> Vec<Bind<'a>> {
        let mut binds = vec![Bind::read(3, &sorted.order), Bind::read(4, &sorted.tiles)];
        if matches!(self, Self::Plain) || pool.layout().has_overlay() {
            binds.push(Bind::read(1, x));
        }
        if let Self::Coop(_) = self {
            binds.push(Bind::read(7, x));
        }
        binds.extend(pool.binds());
        binds
    }
}

/// The jobs of a step, sorted, and the tiles they are cut into.
struct Sorted {
    variant: Variant,
    order: wgpu::Buffer,
    tiles: wgpu::Buffer,
    jobs: u32,
    experts: u32,
}

/// Tiles of `tile` jobs that a step may have: the last one of every expert need not be full.
fn most_tiles(jobs: u32, experts: u32, tile: u32) -> u32 {
    jobs / tile + jobs.min(experts)
}

impl Sorted {
    /// `lines` of weights by the tiles of a step.
    fn grid(&self, lines: usize) -> impl Fn(&StepSize) -> [u32; 3] + Send + 'static {
        let [tile, tile_lines] = self.variant.tile();
        let (jobs, experts, across) = (self.jobs, self.experts, (lines as u32).div_ceil(tile_lines));
        move |size| [across, most_tiles(size.rows * jobs, experts, tile), 1]
    }
}

/// Records the experts, the shared one and the sum.
pub(super) fn run(rec: &mut Recorder<'_>, layer: &Layer<'_>, experts: &Experts) -> Result<(), GpuError> {
    let sorted = sort(rec, layer, experts)?;
    let rows = rec.slots.rows() * experts.numbers.jobs;
    let products = sorted.variant.products(rec, rows, experts.width)?;
    let input = match sorted.variant {
        Variant::Plain => layer.input.buffer.clone(),
        Variant::Coop(_) => half_copy(rec, &layer.input, |size| size.rows)?,
    };
    for pool in &experts.gate_up {
        gate_up(rec, layer, experts, pool, &sorted, &input, &products)?;
    }
    let outputs = Layer::scratch(rec, "moe outputs", 0, rows, layer.out.width)?;
    for pool in &experts.down {
        down(rec, layer, pool, &sorted, &products, &outputs)?;
    }
    let shared = match layer.op.shared.filter(|_| !layer.shared_inside) {
        Some(shared) => Some(dense(rec, layer, &shared)?),
        None => None,
    };
    combine(rec, layer, experts, &outputs, shared.as_ref())
}

fn sort(rec: &mut Recorder<'_>, layer: &Layer<'_>, experts: &Experts) -> Result<Sorted, GpuError> {
    let variant = Variant::of(rec);
    let [tile, _] = variant.tile();
    let (jobs, count) = (experts.numbers.jobs as u32, experts.count as u32);
    let most = rec.slots.rows() as u32 * jobs;
    let order = rec.scratch("moe order", 0, most as usize * 4)?;
    let tiles = rec.scratch("moe tiles", 0, (1 + most_tiles(most, count, tile)) as usize * 16)?;
    let source =
        source(rec, "moe_group", wgsl!("moe_group.wgsl"), WORKGROUP).with("EXPERTS", experts.count).with("TILE", tile);
    let source = experts.with_jobs(source, layer.jobs);
    let binds = [Bind::write(2, &order), Bind::write(3, &tiles), Bind::read(5, &layer.chosen)];
    rec.dispatch(&source, &binds, move |_| [count, 1, 1])?;
    Ok(Sorted { variant, order, tiles, jobs, experts: count })
}

fn gate_up(
    rec: &mut Recorder<'_>,
    layer: &Layer<'_>,
    experts: &Experts,
    pool: &Pool,
    sorted: &Sorted,
    input: &wgpu::Buffer,
    products: &Activation,
) -> Result<(), GpuError> {
    let source = sorted.variant.shader(rec, "moe_gemm_gate_up", pool, &layer.input);
    let source = sorted
        .variant
        .with_kept(source)
        .with("WIDTH", experts.width)
        .with("STRIDE", products.stride)
        .with("JOBS", experts.numbers.jobs)
        .part(wgsl!("lib/moe_tile_products.wgsl"));
    let source = with_function(pool.with_role(source), layer.op.activation);
    let mut binds = sorted.variant.binds(pool, input, sorted);
    binds.push(Bind::write(2, &products.buffer));
    rec.dispatch(&source, &binds, sorted.grid(products.stride * pool.matrices()))
}

fn down(
    rec: &mut Recorder<'_>,
    layer: &Layer<'_>,
    pool: &Pool,
    sorted: &Sorted,
    products: &Activation,
    outputs: &Activation,
) -> Result<(), GpuError> {
    let source = sorted
        .variant
        .shader(rec, "moe_gemm_down", pool, products)
        .with("ROWS", layer.out.width)
        .with("OUT_STRIDE", outputs.stride)
        .part(wgsl!("lib/moe_tile_outputs.wgsl"));
    let mut binds = sorted.variant.binds(pool, &products.buffer, sorted);
    binds.push(Bind::write(2, &outputs.buffer));
    rec.dispatch(&source, &binds, sorted.grid(outputs.width))
}

/// A shared expert of another width is like any FFN: `[tokens, hidden_size]`, without its factor.
fn dense(rec: &mut Recorder<'_>, layer: &Layer<'_>, shared: &SharedExpert) -> Result<Activation, GpuError> {
    let (rows, width) = (rec.slots.rows(), shared.intermediate_size);
    let gate = Layer::scratch(rec, "moe shared gate", 0, rows, width)?;
    let up = Layer::scratch(rec, "moe shared up", 0, rows, width)?;
    let out = Layer::scratch(rec, "moe shared output", 0, rows, layer.out.width)?;
    let expert = shared.expert;
    if rec.layout(expert.gate)? == rec.layout(expert.up)? {
        plain(rec, &layer.input, &[expert.gate, expert.up], &[gate.clone(), up.clone()])?;
    } else {
        plain(rec, &layer.input, &[expert.gate], std::slice::from_ref(&gate))?;
        plain(rec, &layer.input, &[expert.up], std::slice::from_ref(&up))?;
    }
    glu(rec, &gate, &up, layer.op.activation, None)?;
    plain(rec, &gate, &[expert.down], std::slice::from_ref(&out))?;
    Ok(out)
}

fn plain(rec: &mut Recorder<'_>, x: &Activation, ids: &[MatrixId], outputs: &[Activation]) -> Result<(), GpuError> {
    let (matrix, class) = (rec.matrix(ids)?, rec.class);
    let made =
        Product { x, int8: None, matrix: &matrix, outputs, bias: None, store: Store::Set, rows: Rows::Step, class };
    product(rec, &made)
}

/// Every token's outputs, summed.
fn combine(
    rec: &mut Recorder<'_>,
    layer: &Layer<'_>,
    experts: &Experts,
    outputs: &Activation,
    shared: Option<&Activation>,
) -> Result<(), GpuError> {
    debug_assert_eq!(outputs.stride, layer.out.stride, "rows of the same width");
    let source = source(rec, "moe_combine", wgsl!("moe_combine.wgsl"), WORKGROUP)
        .with("ROWS", layer.out.width)
        .with("OUT_STRIDE", layer.out.stride)
        .with("ADD", layer.store == Store::Add)
        .part(wgsl!("lib/moe_sum.wgsl"))
        .part(match shared {
            Some(_) => wgsl!("lib/moe_shared_output.wgsl"),
            None => wgsl!("lib/moe_no_shared_output.wgsl"),
        });
    let source = experts.with_jobs(source, layer.jobs);
    let mut binds = vec![
        Bind::read(1, &outputs.buffer),
        Bind::write(2, &layer.out.buffer),
        Bind::read(3, &layer.factors),
        Bind::read(5, &layer.chosen),
    ];
    binds.extend(shared.map(|shared| Bind::read(4, &shared.buffer)));
    let groups = groups_for(layer.out.width);
    rec.dispatch(&source, &binds, move |size| [groups, size.rows, 1])
}
