//! A few tokens: every job reads its expert's rows.

use super::Layer;
use super::experts::{Experts, Pool, Role};
use super::one::{Turns, down_turns, gate_up_turns};
use super::route::with_input;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, fold, team_size};
use crate::ops::ffn::with_function;
use crate::ops::linear::{Store, with_overlay};
use crate::ops::source;
use crate::plan::{Activation, Quantised, Recorder};
use crate::shader::{Source, wgsl};
use crate::slots::padded;

/// Most tokens of the classes that come here.
const TOKENS: usize = crate::plan::FEW;

/// The products of the jobs, and their int8 copy where a down matrix takes it.
struct Products {
    values: Activation,
    int8: Option<Quantised>,
}

/// Records sets of experts, all of whose outputs are summed.
pub(super) fn run(rec: &mut Recorder<'_>, layer: &Layer<'_>, sets: &[&Experts]) -> Result<(), GpuError> {
    let mut made = Vec::new();
    for (index, experts) in sets.iter().enumerate() {
        let products = products(rec, experts, index)?;
        for pool in &experts.gate_up {
            gate_up(rec, layer, experts, pool, &products)?;
        }
        made.push(products);
    }
    let mut store = layer.store;
    for (experts, products) in sets.iter().zip(&made) {
        for pool in &experts.down {
            down(rec, layer, experts, pool, products, store)?;
            store = Store::Add;
        }
    }
    Ok(())
}

fn products(rec: &mut Recorder<'_>, experts: &Experts, index: usize) -> Result<Products, GpuError> {
    let rows = TOKENS * experts.numbers.jobs;
    let values = Layer::scratch(rec, "moe products", index, rows, experts.width)?;
    let int8 = if experts.down.iter().any(|pool| pool.takes_int8(rec)) {
        let groups = rec.codes.count() * rows * padded(experts.width) / 32;
        let codes = rec.scratch("moe product codes", index, groups * 32)?;
        let scales = rec.scratch("moe product scales", index, groups * 8)?;
        Some(Quantised { codes, scales, rows, per_value: rec.codes })
    } else {
        None
    };
    Ok(Products { values, int8 })
}

/// The products of the jobs whose experts `pool` holds.
fn gate_up(
    rec: &mut Recorder<'_>,
    layer: &Layer<'_>,
    experts: &Experts,
    pool: &Pool,
    products: &Products,
) -> Result<(), GpuError> {
    let int8 = if pool.takes_int8(rec) { Some(rec.quantised(layer.op.input)?) } else { None };
    let turns = int8.as_ref().and_then(|_| gate_up_turns(rec, pool));
    let (name, body) = match (&int8, turns) {
        (Some(_), Some(_)) => ("moe_gate_up_int8_one", wgsl!("moe_gate_up_int8_one.wgsl")),
        (Some(_), None) => ("moe_gate_up_int8", wgsl!("moe_gate_up_int8.wgsl")),
        (None, _) => ("moe_gate_up", wgsl!("moe_gate_up.wgsl")),
    };
    // A gate alone is no product yet.
    let packed = products.int8.as_ref().filter(|_| pool.role != Role::Gate);
    let source = source(rec, name, body, WORKGROUP)
        .with("WIDTH", experts.width)
        .with("STRIDE", products.values.stride)
        .part(wgsl!("lib/moe_products.wgsl"));
    let source = with_packing(rec.codes.constant(source), packed, products.values.stride);
    let source = experts.with_jobs(with_function(pool.with_role(source), layer.op.activation), layer.jobs);
    let mut source = with_overlay(pool.with_weights(source), pool.layout());
    let mut binds = vec![Bind::write(2, &products.values.buffer), Bind::read(5, &layer.chosen)];
    binds.extend(pool.binds());
    if let Some(packed) = packed {
        binds.extend([Bind::write(3, &packed.codes), Bind::write(4, &packed.scales)]);
    }
    if let Some(int8) = &int8 {
        source = with_codes(source, pool, int8, turns);
        binds.extend([Bind::read(7, &int8.codes), Bind::read(8, &int8.scales)]);
    }
    if int8.is_none() || pool.layout().has_overlay() {
        source = with_input(source, layer.input.stride);
        binds.push(Bind::read(1, &layer.input.buffer));
    }
    // As `NEURONS` in the shader.
    let neurons = (4 * WORKGROUP / team_size(rec.gpu, WORKGROUP)).max(32);
    let (groups, jobs) = ((products.values.stride as u32).div_ceil(neurons), experts.numbers.jobs as u32);
    rec.dispatch(&source, &binds, move |size| [groups, size.rows * jobs, 1])
}

/// Adds the int8 copy of finished products, or none.
fn with_packing(source: Source, packed: Option<&Quantised>, stride: usize) -> Source {
    match packed {
        Some(packed) => source
            .with("PACKED_REST", packed.rest(stride / 32))
            .part(wgsl!("lib/octet.wgsl"))
            .part(wgsl!("lib/moe_pack.wgsl")),
        None => source.part(wgsl!("lib/moe_no_pack.wgsl")),
    }
}

/// Adds the int8 activations that a pool's products take; `turns` of them in workgroup memory where they fit.
fn with_codes(source: Source, pool: &Pool, int8: &Quantised, turns: Option<Turns>) -> Source {
    let source =
        pool.layout().with_dot(source).with("X_REST", int8.rest(pool.cols() / 32)).part(int8.per_value.group());
    match turns {
        Some(turns) => turns.with_x(source),
        None => source.part(wgsl!("lib/x_codes.wgsl")),
    }
}

/// The weighted sum of the jobs whose experts `pool` holds.
fn down(
    rec: &mut Recorder<'_>,
    layer: &Layer<'_>,
    experts: &Experts,
    pool: &Pool,
    products: &Products,
    store: Store,
) -> Result<(), GpuError> {
    let int8 = products.int8.as_ref().filter(|_| pool.takes_int8(rec));
    let turns = int8.and_then(|_| down_turns(rec, experts, pool));
    let (name, body) = match (int8, turns) {
        (Some(_), Some(_)) => ("moe_down_int8_one", wgsl!("moe_down_int8_one.wgsl")),
        (Some(_), None) => ("moe_down_int8", wgsl!("moe_down_int8.wgsl")),
        (None, _) => ("moe_down", wgsl!("moe_down.wgsl")),
    };
    let source = source(rec, name, body, WORKGROUP)
        .with("ROWS", layer.out.width)
        .with("OUT_STRIDE", layer.out.stride)
        .with("ADD", store == Store::Add)
        .with("OVERLAY", pool.layout().has_overlay())
        .part(wgsl!("lib/moe_sum.wgsl"));
    let source = experts.with_jobs(source, layer.jobs);
    let mut source = with_overlay(pool.with_weights(source), pool.layout());
    let mut binds =
        vec![Bind::write(2, &layer.out.buffer), Bind::read(3, &layer.factors), Bind::read(5, &layer.chosen)];
    binds.extend(pool.binds());
    if let Some(int8) = int8 {
        source = with_codes(int8.per_value.constant(source), pool, int8, turns);
        binds.extend([Bind::read(7, &int8.codes), Bind::read(8, &int8.scales)]);
    }
    if int8.is_none() || pool.layout().has_overlay() {
        source = with_input(source, products.values.stride);
        binds.push(Bind::read(1, &products.values.buffer));
    }
    let rows_per_team = if turns.is_some() { 2 } else { 1 };
    let per_group = rows_per_team * (WORKGROUP / team_size(rec.gpu, WORKGROUP)) as usize;
    let groups = layer.out.width.div_ceil(per_group) as u32;
    rec.dispatch(&source, &binds, move |size| fold(size.rows, groups))
}
