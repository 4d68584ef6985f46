//! What the network is, layer by layer, read from the header and from which tensors exist (never from its name).

mod attention;
mod check;
mod ffn;
mod recurrent;

pub use attention::{AttentionSpec, MlaSpec, NormSpan, QkNormSpec, RopeSpec};
pub use ffn::{ExpertGroups, FfnSpec, MoeSpec, RouterScoring, SharedExpertSpec};
pub use recurrent::{GatedDeltaSpec, ShortConvSpec};

use cortiq_cmf::{Header, LayerType, ModelArch, NormStyle};

use crate::weights::vector_values;
use crate::{ModelError, Weights};

/// An RMS norm: `x / sqrt(mean(x²) + eps) * (offset + w)`; `offset` is 1 in Gemma's style, else 0.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Name of the weight tensor.
    pub weight: String,
    /// Added to the mean square.
    pub eps: f64,
    /// Added to the weight.
    pub offset: f32,
}

/// The part of a layer that mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Full or sliding-window attention.
    Attention(AttentionSpec),
    /// Multi-head latent attention.
    Mla(MlaSpec),
    /// A gated delta net.
    GatedDelta(GatedDeltaSpec),
    /// A short gated convolution.
    ShortConv(ShortConvSpec),
}

/// One decoder layer: `x += post(mixer(pre(x))); x += post(ffn(pre(x))); x *= scalar`, absent norms left out.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norm before the mixer.
    pub mixer_norm: Option<NormSpec>,
    /// The mixer.
    pub mixer: MixerSpec,
    /// Norm after the mixer.
    pub mixer_post_norm: Option<NormSpec>,
    /// Norm before the FFN.
    pub ffn_norm: Option<NormSpec>,
    /// The FFN.
    pub ffn: FfnSpec,
    /// Norm after the FFN.
    pub ffn_post_norm: Option<NormSpec>,
    /// Factor on the residual stream after the layer.
    pub scalar: Option<f32>,
}

/// A whole decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
    /// Factor on embedding rows.
    pub embed_multiplier: f32,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Norm before the head.
    pub final_norm: NormSpec,
    /// Tensor that the head multiplies with: `lm_head.weight`, or the embedding when tied.
    pub head: &'static str,
    /// Logits become `c * tanh(logits / c)`.
    pub final_softcap: Option<f32>,
    /// Head that predicts the token after the next.
    pub mtp: Option<MtpSpec>,
}

/// Multi-token prediction: `x = eh_proj [norm(embed(next token)) ; norm(hidden)]`, one decoder layer, a norm, and the
/// model's own head. `hidden` is the trunk's output after its final norm.
#[derive(Clone, Debug, PartialEq)]
pub struct MtpSpec {
    /// Norm of the embedding.
    pub embed_norm: NormSpec,
    /// Norm of the hidden state.
    pub hidden_norm: NormSpec,
    /// Module that joins both, `[hidden_size, 2 * hidden_size]`.
    pub joint: String,
    /// The layer.
    pub layer: LayerSpec,
    /// Norm before the head.
    pub norm: NormSpec,
}

/// Name of the embedding tensor.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";

impl ModelSpec {
    /// Reads the spec of a model. Whatever the engine cannot run is refused here, by name.
    pub fn new(header: &Header, weights: &dyn Weights) -> Result<Self, ModelError> {
        let arch = &header.arch;
        check::numbers(header)?;
        check::refuse_unknown(arch, weights)?;
        let reader = Reader { arch, weights };
        let layers = (0..arch.num_layers)
            .map(|index| reader.layer(index, &format!("model.layers.{index}")))
            .collect::<Result<_, ModelError>>()?;
        // A missing head means tied embeddings whatever the header says: the public GGUF import forgets the flag.
        let tied = arch.tie_word_embeddings || !reader.has(LM_HEAD);
        Ok(Self {
            hidden_size: arch.hidden_size,
            vocab_size: arch.vocab_size,
            max_position_embeddings: arch.max_position_embeddings,
            embed_multiplier: arch.embed_multiplier,
            layers,
            final_norm: reader.norm("model.norm.weight".to_owned()),
            head: if tied { EMBEDDING } else { LM_HEAD },
            final_softcap: arch.final_logit_softcapping.map(|c| c as f32),
            mtp: reader.mtp()?,
        })
    }
}

/// Header and tensors, while a spec is read.
struct Reader<'a> {
    arch: &'a ModelArch,
    weights: &'a dyn Weights,
}

impl Reader<'_> {
    fn has(&self, name: &str) -> bool {
        self.weights.find(name).is_some()
    }

    /// Shape of a tensor that must exist.
    fn shape(&self, name: &str) -> Result<Vec<usize>, ModelError> {
        let id = self.weights.find(name).ok_or_else(|| ModelError::MissingTensor(name.to_owned()))?;
        Ok(self.weights.shape(id)?.iter().map(|&d| d as usize).collect())
    }

    /// Rows of a matrix that must exist.
    fn rows(&self, name: &str) -> Result<usize, ModelError> {
        Ok(self.shape(name)?.first().copied().unwrap_or(0))
    }

    fn norm(&self, weight: String) -> NormSpec {
        let offset = match self.arch.norm_style {
            NormStyle::Qwen => 0.0,
            NormStyle::Gemma => 1.0,
        };
        NormSpec { weight, eps: self.arch.rms_norm_eps, offset }
    }

    /// The prediction head, where the header says so and its tensors are there; files of v0.4.0 may have only the
    /// header's part.
    fn mtp(&self) -> Result<Option<MtpSpec>, ModelError> {
        const PREFIX: &str = "model.mtp";
        let joint = format!("{PREFIX}.eh_proj");
        if self.arch.mtp.is_none() || !self.has(&format!("{joint}.weight")) {
            return Ok(None);
        }
        let layer = format!("{PREFIX}.layers.0");
        let mixer = match self.arch.mla {
            Some(_) => MixerSpec::Mla(self.mla(0, &layer)?),
            None => MixerSpec::Attention(self.attention(None, &layer)?),
        };
        Ok(Some(MtpSpec {
            embed_norm: self.norm(format!("{PREFIX}.enorm.weight")),
            hidden_norm: self.norm(format!("{PREFIX}.hnorm.weight")),
            joint,
            layer: self.layer_with(mixer, &layer)?,
            norm: self.norm(format!("{PREFIX}.norm.weight")),
        }))
    }

    fn layer(&self, index: usize, prefix: &str) -> Result<LayerSpec, ModelError> {
        let mixer = match self.arch.layer_types.get(index) {
            Some(LayerType::LinearAttention) => MixerSpec::GatedDelta(self.gated_delta(prefix)?),
            Some(LayerType::ShortConv) => MixerSpec::ShortConv(self.short_conv(prefix)?),
            _ if self.arch.mla.is_some() => MixerSpec::Mla(self.mla(index, prefix)?),
            _ => MixerSpec::Attention(self.attention(Some(index), prefix)?),
        };
        self.layer_with(mixer, prefix)
    }

    fn layer_with(&self, mixer: MixerSpec, prefix: &str) -> Result<LayerSpec, ModelError> {
        let [mixer_norm, mixer_post_norm, ffn_norm, ffn_post_norm] = self.norms(prefix);
        Ok(LayerSpec {
            mixer_norm,
            mixer,
            mixer_post_norm,
            ffn_norm,
            ffn: self.ffn(prefix)?,
            ffn_post_norm,
            scalar: self.scalar(&format!("{prefix}.layer_scalar"))?,
        })
    }

    /// Norms before and after the mixer, before and after the FFN. Three layouts: pre-norm, sandwich (with
    /// `pre_feedforward_layernorm`), and post-norm (without `input_layernorm`).
    fn norms(&self, prefix: &str) -> [Option<NormSpec>; 4] {
        let norm = |name: &str| Some(self.norm(format!("{prefix}.{name}.weight")));
        let (input, attention) = (norm("input_layernorm"), norm("post_attention_layernorm"));
        let (pre_ffn, post_ffn) = (norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm"));
        if self.has(&format!("{prefix}.pre_feedforward_layernorm.weight")) {
            [input, attention, pre_ffn, post_ffn]
        } else if !self.has(&format!("{prefix}.input_layernorm.weight")) && post_ffn_exists(self, prefix) {
            [None, attention, None, post_ffn]
        } else {
            [input, None, attention, None]
        }
    }

    /// A tensor of one value, where it exists.
    fn scalar(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let Some(id) = self.weights.find(name) else { return Ok(None) };
        match vector_values(self.weights, id, name)?.as_slice() {
            [value] => Ok(Some(*value)),
            values => Err(ModelError::Shape {
                name: name.to_owned(),
                found: vec![u32::try_from(values.len()).unwrap_or(u32::MAX)],
                expected: vec![1],
            }),
        }
    }
}

fn post_ffn_exists(reader: &Reader<'_>, prefix: &str) -> bool {
    reader.has(&format!("{prefix}.post_feedforward_layernorm.weight"))
}
