//! Binary masks: which neurons, heads and layers a task uses (docs/cmf-format.md §9).

mod section;

pub(crate) use section::{encode, parse};

use crate::ModelArch;
use serde::{Deserialize, Serialize};

/// Importance of a mask when several are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MaskPriority {
    /// Used when nothing else fits.
    Fallback,
    /// The usual one.
    Normal,
    /// Preferred.
    Primary,
}

/// Measured quality of a mask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskQuality {
    /// What was measured.
    pub metric: String,
    /// Result with the mask.
    pub value: f32,
    /// Result without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_dense: Option<f32>,
    /// Samples measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_samples: Option<u32>,
    /// Identifies the data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset_sha256: Option<String>,
}

/// The sizes that fix the layout of a mask's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskShape {
    /// Layers.
    pub num_layers: usize,
    /// FFN neurons per layer.
    pub intermediate_size: usize,
    /// Query heads per layer.
    pub num_heads: usize,
}

impl From<&ModelArch> for MaskShape {
    fn from(arch: &ModelArch) -> Self {
        Self {
            num_layers: arch.num_layers,
            intermediate_size: arch.intermediate_size,
            num_heads: arch.num_attention_heads,
        }
    }
}

impl MaskShape {
    fn ffn_row(self) -> usize {
        self.intermediate_size.div_ceil(8)
    }

    fn head_row(self) -> usize {
        self.num_heads.div_ceil(8)
    }

    fn heads_start(self) -> usize {
        self.num_layers.saturating_mul(self.ffn_row())
    }

    fn layers_start(self) -> usize {
        self.heads_start().saturating_add(self.num_layers.saturating_mul(self.head_row()))
    }

    /// Bytes of one mask: a row of neuron bits per layer, a row of head bits per layer, one
    /// row of layer bits. Saturates for sizes that no header may have.
    #[must_use]
    pub fn blob_len(self) -> usize {
        self.layers_start().saturating_add(self.num_layers.div_ceil(8))
    }
}

/// One mask. Bits outside the shape are always 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Number of the task.
    pub task_id: u32,
    /// Name of the task.
    pub name: String,
    /// Text for people.
    pub description: Option<String>,
    /// Part of the network that is off, as its maker measured it.
    pub sparsity: f32,
    /// Measured quality.
    pub quality: Option<MaskQuality>,
    /// Mask this one was derived from.
    pub parent: Option<String>,
    /// Importance.
    pub priority: MaskPriority,
    /// Reserved by the format; no writer sets it.
    pub has_hot_pack: bool,
    shape: MaskShape,
    bits: Vec<u8>,
}

impl Mask {
    /// A mask with everything switched off.
    #[must_use]
    pub fn new(task_id: u32, name: &str, shape: MaskShape) -> Self {
        Self {
            task_id,
            name: name.into(),
            description: None,
            sparsity: 0.0,
            quality: None,
            parent: None,
            priority: MaskPriority::Normal,
            has_hot_pack: false,
            shape,
            bits: vec![0; shape.blob_len()],
        }
    }

    /// The sizes it was made for.
    #[must_use]
    pub fn shape(&self) -> MaskShape {
        self.shape
    }

    /// All bits as stored in the file.
    #[must_use]
    pub fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// Neuron bits of a layer, least significant bit first; empty for a layer that does not exist.
    #[must_use]
    pub fn neuron_bits(&self, layer: usize) -> &[u8] {
        self.row(0, self.shape.ffn_row(), layer)
    }

    /// Head bits of a layer.
    #[must_use]
    pub fn head_bits(&self, layer: usize) -> &[u8] {
        self.row(self.shape.heads_start(), self.shape.head_row(), layer)
    }

    /// Layer bits.
    #[must_use]
    pub fn layer_bits(&self) -> &[u8] {
        self.bits.get(self.shape.layers_start()..).unwrap_or_default()
    }

    fn row(&self, start: usize, len: usize, layer: usize) -> &[u8] {
        if layer >= self.shape.num_layers {
            return &[];
        }
        let at = start.saturating_add(layer.saturating_mul(len));
        self.bits.get(at..at.saturating_add(len)).unwrap_or_default()
    }

    /// Whether a neuron is used.
    #[must_use]
    pub fn neuron(&self, layer: usize, neuron: usize) -> bool {
        bit(self.neuron_bits(layer), neuron)
    }

    /// Whether a head is used.
    #[must_use]
    pub fn head(&self, layer: usize, head: usize) -> bool {
        bit(self.head_bits(layer), head)
    }

    /// Whether a layer is used.
    #[must_use]
    pub fn layer(&self, layer: usize) -> bool {
        bit(self.layer_bits(), layer)
    }

    /// Switches a neuron; `false` when it does not exist.
    pub fn set_neuron(&mut self, layer: usize, neuron: usize, on: bool) -> bool {
        let s = self.shape;
        let row = layer.saturating_mul(s.ffn_row());
        layer < s.num_layers && neuron < s.intermediate_size && self.set(row, neuron, on)
    }

    /// Switches a head; `false` when it does not exist.
    pub fn set_head(&mut self, layer: usize, head: usize, on: bool) -> bool {
        let s = self.shape;
        let row = s.heads_start().saturating_add(layer.saturating_mul(s.head_row()));
        layer < s.num_layers && head < s.num_heads && self.set(row, head, on)
    }

    /// Switches a layer; `false` when it does not exist.
    pub fn set_layer(&mut self, layer: usize, on: bool) -> bool {
        let start = self.shape.layers_start();
        layer < self.shape.num_layers && self.set(start, layer, on)
    }

    fn set(&mut self, row: usize, index: usize, on: bool) -> bool {
        let Some(byte) = self.bits.get_mut(row.saturating_add(index / 8)) else {
            return false;
        };
        let bit = 1 << (index % 8);
        if on {
            *byte |= bit;
        } else {
            *byte &= !bit;
        }
        true
    }
}

/// Bit `index` of a row, least significant first; `false` behind the end.
pub(crate) fn bit(row: &[u8], index: usize) -> bool {
    row.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

/// All masks of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskCatalogue {
    /// Name of the task that is used when none is asked for.
    pub default_task: String,
    /// The masks in the order of the file.
    pub masks: Vec<Mask>,
}

impl Default for MaskCatalogue {
    fn default() -> Self {
        Self { default_task: "general".into(), masks: Vec::new() }
    }
}

impl MaskCatalogue {
    /// The first mask of a task.
    #[must_use]
    pub fn by_task(&self, task_id: u32) -> Option<&Mask> {
        self.masks.iter().find(|m| m.task_id == task_id)
    }

    /// The first mask with a name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Mask> {
        self.masks.iter().find(|m| m.name == name)
    }
}
