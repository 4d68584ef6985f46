//! Scores and the choice of experts.

use cortiq_model::RouterScoring;

use super::Layer;
use crate::GpuError;
use crate::kernel::{Bind, WORKGROUP, team_size};
use crate::ops::linear::{Product, Store, product, with_overlay};
use crate::ops::source;
use crate::plan::{Class, Recorder, Rows};
use crate::shader::{Source, wgsl};

/// The chosen experts of every token and their factors.
pub(super) fn route(rec: &mut Recorder<'_>, layer: &Layer<'_>) -> Result<(), GpuError> {
    let op = layer.op;
    let rows = rec.slots.rows();
    let logits = Layer::scratch(rec, "moe logits", 0, rows, op.experts.len())?;
    let router = rec.matrix(&[op.router])?;
    // In f32 and in one order of sums whatever the batch: a small difference may change the choice.
    let class = if rec.class == Class::Many { Class::Few } else { rec.class };
    let outputs = [logits.clone()];
    let scores = Product {
        x: &layer.input,
        int8: None,
        matrix: &router,
        outputs: &outputs,
        bias: None,
        store: Store::Set,
        rows: Rows::Step,
        class,
    };
    product(rec, &scores)?;
    let bias = op.selection_bias.map(|bias| rec.vector(bias)).transpose()?;
    let (groups, kept) = op.groups.map_or((1, 1), |groups| (groups.count, groups.kept));
    let source = source(rec, "moe_route", wgsl!("moe_route.wgsl"), threads(rec, op.experts.len()))
        .with("EXPERTS", op.experts.len())
        .with("GROUPS", groups)
        .with("KEPT", kept)
        .with("TOP_K", op.top_k)
        .with("SIGMOID", op.scoring == RouterScoring::Sigmoid)
        .with("NORMALISE", op.normalise.is_some())
        .with("EPS", op.normalise.unwrap_or_default() as f32)
        .with("SCALE", op.scale)
        .with("LOGIT_STRIDE", logits.stride)
        .with("JOBS_STRIDE", layer.jobs)
        .with("SHARED", op.shared.is_some())
        .part(wgsl!("lib/ahead4.wgsl"))
        .part(wgsl!("lib/place_in_set.wgsl"))
        .part(match bias {
            Some(_) => wgsl!("lib/moe_selection_bias.wgsl"),
            None => wgsl!("lib/moe_no_selection_bias.wgsl"),
        });
    let gate = op.shared.and_then(|shared| shared.gate).map(|gate| rec.matrix(&[gate])).transpose()?;
    let mut binds = vec![Bind::read(2, &logits.buffer), Bind::write(4, &layer.chosen), Bind::write(5, &layer.factors)];
    binds.extend(bias.as_ref().map(|bias| Bind::read(3, bias)));
    let source = match &gate {
        None => source.part(wgsl!("lib/moe_shared_plain.wgsl")),
        Some(gate) => {
            binds.push(Bind::read(1, &layer.input.buffer));
            binds.extend(gate.fields.as_ref().map(|fields| Bind::read(9, fields)));
            binds.extend(gate.pieces.iter().flat_map(|piece| piece.binds()));
            let source = with_input(source, layer.input.stride).part(wgsl!("lib/moe_shared_gate.wgsl"));
            let source = source.part(wgsl!("lib/one_part.wgsl")).part(wgsl!("lib/half.wgsl"));
            with_overlay(gate.layout.with_weights(source, gate.cols), gate.layout)
        }
    };
    rec.dispatch(&source, &binds, |size| [1, size.rows, 1])
}

/// Threads of a workgroup: one per expert where the device allows it, and a multiple of four teams.
fn threads(rec: &Recorder<'_>, experts: usize) -> u32 {
    let wanted = u32::try_from(experts.next_power_of_two()).unwrap_or(u32::MAX);
    let most = rec.gpu.caps().threads(1024);
    wanted.clamp((4 * team_size(rec.gpu, WORKGROUP)).max(128), most)
}

/// Adds f32 activations at binding 1.
pub(super) fn with_input(source: Source, stride: usize) -> Source {
    source.with("X_STRIDE4", stride / 4).part(wgsl!("lib/x4.wgsl"))
}
