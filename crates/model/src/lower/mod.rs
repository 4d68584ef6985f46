//! ModelSpec → Program.

mod attention;
mod builder;
mod ffn;
mod mask;
mod mla;
mod recurrent;

use builder::Builder;
use cortiq_cmf::Mask;
use mask::LayerMask;

use crate::spec::EMBEDDING;
use crate::{
    Draft, FfnSpec, HeadOp, LayerSpec, MatrixId, MixerSpec, ModelError, ModelSpec, MtpSpec, NormSpec, Op, Program,
    Slot, Weights,
};

/// The slots that every layer uses.
#[derive(Clone, Copy)]
struct Stream {
    /// The residual stream.
    residual: Slot,
    /// Input of a mixer or FFN.
    normed: Slot,
    /// Output of a mixer or FFN.
    branch: Slot,
}

/// Lowers a whole model, or what a task mask leaves of it.
pub(crate) fn lower(spec: &ModelSpec, weights: &dyn Weights, mask: Option<&Mask>) -> Result<Program, ModelError> {
    mask.map_or(Ok(()), |mask| mask::check(mask, spec))?;
    let mut b = Builder::new(spec, weights);
    let stream = Stream {
        residual: b.slot("residual", spec.hidden_size),
        normed: b.slot("normed", spec.hidden_size),
        branch: b.slot("branch", spec.hidden_size),
    };
    let table = b.matrix(EMBEDDING, spec.vocab_size, spec.hidden_size)?;
    b.push(Op::Embed { table, scale: spec.embed_multiplier, out: stream.residual });
    for (index, layer) in spec.layers.iter().enumerate() {
        let kept = match mask {
            Some(mask) => LayerMask::read(mask, index, layer)?,
            None => Some(LayerMask::default()),
        };
        // A layer that is off leaves nothing behind, neither operations nor state.
        if let Some(kept) = kept {
            let first = b.program.ops.len();
            lower_layer(&mut b, layer, kept, stream)?;
            b.program.layers.push(first..b.program.ops.len());
        }
    }
    b.norm(&spec.final_norm, stream.residual, stream.normed)?;
    let weight = b.matrix(spec.head, spec.vocab_size, spec.hidden_size)?;
    let head = HeadOp { input: stream.normed, weight, softcap: spec.final_softcap };
    b.push(Op::Head(head));
    b.program.final_hidden = stream.normed;
    if let Some(mtp) = &spec.mtp {
        lower_draft(&mut b, mtp, table, spec.embed_multiplier, head)?;
    }
    Ok(b.program)
}

/// Lowers the prediction head into a list of its own.
fn lower_draft(
    b: &mut Builder<'_>,
    spec: &MtpSpec,
    table: MatrixId,
    embed_multiplier: f32,
    head: HeadOp,
) -> Result<(), ModelError> {
    let trunk = std::mem::take(&mut b.program.ops);
    let width = b.program.hidden_size;
    let hidden = b.slot("draft_hidden", width);
    let (left, right) = (b.slot("draft_embed_normed", width), b.slot("draft_hidden_normed", width));
    let stream = Stream {
        residual: b.slot("draft_residual", width),
        normed: b.slot("draft_normed", width),
        branch: b.slot("draft_branch", width),
    };
    b.push(Op::Embed { table, scale: embed_multiplier, out: stream.residual });
    b.norm(&spec.embed_norm, stream.residual, left)?;
    b.norm(&spec.hidden_norm, hidden, right)?;
    let both = b.slot("draft_both", 2 * width);
    b.push(Op::Concat { first: left, second: right, out: both });
    let joint = b.linear(&spec.joint, 2 * width, stream.residual)?;
    b.push(Op::Linear { input: both, parts: vec![joint] });
    // Masks do not cover the head: its guesses are verified by what they do cover.
    lower_layer(b, &spec.layer, LayerMask::default(), stream)?;
    b.norm(&spec.norm, stream.residual, stream.normed)?;
    b.push(Op::Head(HeadOp { input: stream.normed, ..head }));
    let ops = std::mem::replace(&mut b.program.ops, trunk);
    b.program.draft = Some(Draft { ops, hidden, output: stream.normed });
    Ok(())
}

fn lower_layer(b: &mut Builder<'_>, layer: &LayerSpec, kept: LayerMask, stream: Stream) -> Result<(), ModelError> {
    let head_mask = kept.heads.map(|values| b.constant(values));
    let input = pre_norm(b, layer.mixer_norm.as_ref(), stream)?;
    match &layer.mixer {
        MixerSpec::Attention(spec) => attention::lower(b, spec, head_mask, input, stream.branch)?,
        MixerSpec::Mla(spec) => mla::lower(b, spec, head_mask, input, stream.branch)?,
        MixerSpec::GatedDelta(spec) => recurrent::gated_delta(b, spec, input, stream.branch)?,
        MixerSpec::ShortConv(spec) => recurrent::short_conv(b, spec, input, stream.branch)?,
    }
    add_branch(b, layer.mixer_post_norm.as_ref(), stream)?;
    let neuron_mask = kept.neurons.map(|values| b.constant(values));
    let input = pre_norm(b, layer.ffn_norm.as_ref(), stream)?;
    match &layer.ffn {
        FfnSpec::Dense { prefix, intermediate_size, activation } => {
            let ffn =
                ffn::Dense { prefix, intermediate_size: *intermediate_size, activation: *activation, neuron_mask };
            ffn::dense(b, &ffn, input, stream.branch)?;
        }
        FfnSpec::Moe(spec) => ffn::moe(b, spec, input, stream.branch)?,
    }
    add_branch(b, layer.ffn_post_norm.as_ref(), stream)?;
    if let Some(factor) = layer.scalar {
        b.push(Op::Scale { slot: stream.residual, factor });
    }
    Ok(())
}

/// The input of a branch: the residual stream, normed where the layout says so.
fn pre_norm(b: &mut Builder<'_>, norm: Option<&NormSpec>, stream: Stream) -> Result<Slot, ModelError> {
    match norm {
        Some(norm) => b.norm(norm, stream.residual, stream.normed).map(|()| stream.normed),
        None => Ok(stream.residual),
    }
}

/// Adds a branch to the residual stream, normed where the layout says so.
fn add_branch(b: &mut Builder<'_>, norm: Option<&NormSpec>, stream: Stream) -> Result<(), ModelError> {
    let add = match norm {
        Some(norm) => b.norm(norm, stream.branch, stream.normed).map(|()| stream.normed)?,
        None => stream.branch,
    };
    b.push(Op::Residual { add, into: stream.residual });
    Ok(())
}
