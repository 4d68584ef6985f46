//! Which tensor is stored as what.

use cortiq_cmf::QuantType;
use cortiq_quant::{Encoding, Fit};
use globset::{Glob, GlobMatcher};

use crate::names::{is_embedding_or_head, is_sensitive, order_key};
use crate::{ConvertError, ConvertOptions, NativeDtype, SourceTensor};

/// The rules about everything that is not an ordinary matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Vectors, convolutions, gates and biases keep the checkpoint's precision; with 4 bits and
    /// fewer the embedding and the head are q8_2f; tensors lie in execution order.
    #[default]
    Default,
    /// What the public v0.4.0 converter writes (docs/cmf-format.md §16): everything but matrices is
    /// f16, embedding and head are stored like other matrices, checkpoint order.
    V040,
}

impl Policy {
    /// How groups get their scales: with least error, or with the bytes of v0.4.0.
    pub(crate) fn fit(self) -> Fit {
        match self {
            Self::Default => Fit::LeastSquares,
            Self::V040 => Fit::Peak,
        }
    }
}

/// One exception: tensors whose name matches `pattern` are stored as `encoding`.
///
/// A float encoding applies to every tensor that matches; a quantising one to matrices only, since
/// vectors and convolutions cannot be quantised.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// A glob over canonical names; `*` matches across dots, e.g. `*.self_attn.*`.
    pub pattern: String,
    /// How to store what matches.
    pub encoding: Encoding,
}

/// Tensors with fewer elements are never quantised (docs/cmf-format.md §16).
const MIN_QUANTISED: u64 = 32;

/// How one tensor is stored, and why if not as asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    /// The encoding used.
    pub(crate) encoding: Encoding,
    /// The encoding that was asked for but cannot hold the matrix.
    pub(crate) instead_of: Option<Encoding>,
    /// An override changed a matrix that is normally kept as it is.
    pub(crate) forced: bool,
}

/// The options in a form that answers per tensor.
pub(crate) struct Planner {
    policy: Policy,
    base: Encoding,
    overrides: Vec<(GlobMatcher, Encoding)>,
}

impl Planner {
    /// Compiles the patterns.
    pub(crate) fn new(options: &ConvertOptions) -> Result<Self, ConvertError> {
        let compile = |o: &Override| match Glob::new(&o.pattern) {
            Ok(glob) => Ok((glob.compile_matcher(), o.encoding.clone())),
            Err(e) => Err(ConvertError::OverridePattern { pattern: o.pattern.clone(), reason: e.kind().to_string() }),
        };
        let overrides = options.overrides.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { policy: options.policy, base: options.encoding.clone(), overrides })
    }

    /// Refuses an override that no tensor matches: it would do nothing in silence.
    pub(crate) fn check_overrides(&self, tensors: &[SourceTensor]) -> Result<(), ConvertError> {
        match self.overrides.iter().find(|(glob, _)| !tensors.iter().any(|t| glob.is_match(&t.name))) {
            Some((glob, _)) => Err(ConvertError::OverrideUnused { pattern: glob.glob().to_string() }),
            None => Ok(()),
        }
    }

    /// Puts the tensors into the order of the output.
    pub(crate) fn arrange(&self, tensors: &mut [SourceTensor]) {
        if self.policy == Policy::Default {
            tensors.sort_by_cached_key(|t| order_key(&t.name));
        }
    }

    /// Decides about one tensor.
    pub(crate) fn choose(&self, tensor: &SourceTensor) -> Choice {
        let wanted = self.overrides.iter().rev().find(|(glob, _)| glob.is_match(&tensor.name)).map(|(_, e)| e);
        let ordinary = self.is_ordinary_matrix(tensor);
        match wanted {
            Some(encoding) if is_float(encoding) || is_matrix(tensor) => {
                let forced = is_sensitive(&tensor.name) && !is_float(encoding);
                Choice { forced, ..self.fit(tensor, encoding.clone()) }
            }
            _ if !ordinary => plain(self.precision(tensor)),
            _ => self.fit(tensor, self.matrix_encoding(&tensor.name)),
        }
    }

    /// True for matrices that the base encoding is for.
    fn is_ordinary_matrix(&self, tensor: &SourceTensor) -> bool {
        is_matrix(tensor) && tensor.len() >= MIN_QUANTISED && !is_sensitive(&tensor.name)
    }

    /// The float dtype of a tensor that is not quantised.
    fn precision(&self, tensor: &SourceTensor) -> Encoding {
        match (self.policy, tensor.native) {
            (Policy::V040, _) | (Policy::Default, NativeDtype::F16) => Encoding::F16,
            (Policy::Default, NativeDtype::Bf16) => Encoding::Bf16,
            (Policy::Default, NativeDtype::F32 | NativeDtype::Quantised) => Encoding::F32,
        }
    }

    /// The encoding of an ordinary matrix without overrides.
    fn matrix_encoding(&self, name: &str) -> Encoding {
        let low = !is_float(&self.base) && !matches!(self.base, Encoding::Q8Row | Encoding::Q8_2f);
        if self.policy == Policy::Default && low && is_embedding_or_head(name) {
            Encoding::Q8_2f
        } else {
            self.base.clone()
        }
    }

    /// `encoding`, or q8_2f where it cannot hold the matrix.
    fn fit(&self, tensor: &SourceTensor, encoding: Encoding) -> Choice {
        let &[rows, cols] = tensor.shape.as_slice() else { return plain(encoding) };
        // Groups of q4_block may cross rows, but kernels need whole groups per row.
        let crossing = self.policy == Policy::Default && encoding == Encoding::Q4Block && !cols.is_multiple_of(32);
        if is_float(&encoding) || (encoding.accepts(rows as usize, cols as usize) && !crossing) {
            plain(encoding)
        } else {
            Choice { encoding: Encoding::Q8_2f, instead_of: Some(encoding), forced: false }
        }
    }
}

fn plain(encoding: Encoding) -> Choice {
    Choice { encoding, instead_of: None, forced: false }
}

fn is_matrix(tensor: &SourceTensor) -> bool {
    tensor.shape.len() == 2
}

fn is_float(encoding: &Encoding) -> bool {
    matches!(encoding, Encoding::F32 | Encoding::F16 | Encoding::Bf16)
}

/// The header's label for a base encoding (docs/cmf-format.md §16).
pub(crate) fn quant_type(encoding: &Encoding) -> QuantType {
    match encoding {
        Encoding::F32 => QuantType::F32,
        Encoding::F16 => QuantType::F16,
        Encoding::Bf16 => QuantType::Bf16,
        Encoding::Q8Row => QuantType::Q8Row,
        Encoding::Q8_2f => QuantType::Q8_2f,
        Encoding::Q4Block | Encoding::Q4Tiled => QuantType::Q4Block,
        Encoding::Vbit { .. }
        | Encoding::VbitPlain { .. }
        | Encoding::Q1
        | Encoding::Q1Carry
        | Encoding::Q1s { .. }
        | Encoding::Q1t(_) => QuantType::Vbit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[u32], native: NativeDtype) -> SourceTensor {
        SourceTensor { name: name.to_owned(), shape: shape.to_vec(), native, load: Box::new(|| Ok(Vec::new())) }
    }

    fn stored(options: &ConvertOptions, name: &str, shape: &[u32], native: NativeDtype) -> &'static str {
        Planner::new(options).unwrap().choose(&tensor(name, shape, native)).encoding.dtype().name()
    }

    fn q(name: &str) -> Encoding {
        Encoding::parse(name, 4.25).unwrap()
    }

    const EMBED: &str = "model.embed_tokens.weight";
    const HEAD: &str = "lm_head.weight";
    const UP: &str = "model.layers.0.mlp.up_proj.weight";
    const NORM: &str = "model.layers.0.input_layernorm.weight";
    const ROUTER: &str = "model.layers.0.mlp.gate.weight";
    const IN_A: &str = "model.layers.0.linear_attn.in_proj_a.weight";
    const CONV: &str = "model.layers.0.linear_attn.conv1d.weight";

    #[test]
    fn default_policy() {
        use NativeDtype::{Bf16, F16, F32, Quantised};
        let cases: &[(&str, &str, &[u32], NativeDtype, &str)] = &[
            ("q8", UP, &[64, 64], Bf16, "q8_row"),
            ("q8", EMBED, &[64, 64], Bf16, "q8_row"),
            ("q8_2f", HEAD, &[64, 64], Bf16, "q8_2f"),
            ("q4", UP, &[64, 64], Bf16, "q4_block"),
            ("q4", UP, &[64, 48], Bf16, "q8_2f"),
            ("q4", EMBED, &[64, 64], Bf16, "q8_2f"),
            ("q4t", HEAD, &[64, 64], Bf16, "q8_2f"),
            ("q4t", UP, &[64, 33], Bf16, "q8_2f"),
            ("vbit", UP, &[64, 64], Bf16, "vbit_ro"),
            ("vbit", EMBED, &[64, 64], F32, "q8_2f"),
            ("vbit", UP, &[64, 16], F32, "q8_2f"),
            ("q1", UP, &[64, 64], F32, "q1"),
            ("q1p", HEAD, &[64, 64], F32, "q8_2f"),
            ("q1s", UP, &[64, 64], F32, "q1s"),
            ("f16", UP, &[64, 64], F32, "f16"),
            ("f32", UP, &[64, 64], Bf16, "f32"),
            ("bf16", EMBED, &[64, 64], F32, "bf16"),
            ("f16", NORM, &[64], F32, "f32"),
            ("q4t", NORM, &[64], Bf16, "bf16"),
            ("q4t", NORM, &[64], F16, "f16"),
            ("q4t", NORM, &[64], F32, "f32"),
            ("q4t", NORM, &[64], Quantised, "f32"),
            ("q4t", ROUTER, &[8, 64], Bf16, "bf16"),
            ("q4t", ROUTER, &[8, 64], Quantised, "f32"),
            ("q4t", IN_A, &[8, 64], F32, "f32"),
            ("q4t", CONV, &[64, 1, 4], Bf16, "bf16"),
            ("q8", UP, &[2, 8], Bf16, "bf16"),
        ];
        for &(quant, name, shape, native, expected) in cases {
            let options = ConvertOptions::new(q(quant));
            assert_eq!(stored(&options, name, shape, native), expected, "{quant} {name} {shape:?} {native:?}");
        }
    }

    #[test]
    fn v040_policy() {
        use NativeDtype::{Bf16, F32};
        let cases: &[(&str, &str, &[u32], NativeDtype, &str)] = &[
            ("q4", UP, &[64, 48], Bf16, "q4_block"),
            ("q4t", UP, &[64, 48], Bf16, "q8_2f"),
            ("q4t", EMBED, &[64, 64], Bf16, "q4_tiled"),
            ("vbit", HEAD, &[64, 64], F32, "vbit_ro"),
            ("q1", EMBED, &[64, 64], F32, "q1"),
            ("q8", NORM, &[64], F32, "f16"),
            ("q8", ROUTER, &[8, 64], Bf16, "f16"),
            ("q8", IN_A, &[8, 64], F32, "f16"),
            ("q8", CONV, &[64, 1, 4], Bf16, "f16"),
            ("q8", UP, &[2, 8], Bf16, "f16"),
            ("q8", UP, &[4, 8], Bf16, "q8_row"),
        ];
        for &(quant, name, shape, native, expected) in cases {
            let options = ConvertOptions::new(q(quant)).policy(Policy::V040);
            assert_eq!(stored(&options, name, shape, native), expected, "{quant} {name} {shape:?} {native:?}");
        }
    }

    #[test]
    fn the_last_override_that_matches_wins() {
        let options = ConvertOptions::new(q("q4t"))
            .with_override("*", q("q8"))
            .with_override("*.mlp.*", q("f16"))
            .with_override("*.layers.{0,1}.mlp.up*", q("q1"))
            .with_override("lm_head.weight", q("vbit"));
        let bf16 = NativeDtype::Bf16;
        for (name, expected) in [
            (EMBED, "q8_row"),
            (UP, "q1"),
            ("model.layers.2.mlp.up_proj.weight", "f16"),
            ("model.layers.2.self_attn.q_proj.weight", "q8_row"),
            (HEAD, "vbit_ro"),
        ] {
            assert_eq!(stored(&options, name, &[64, 64], bf16), expected, "{name}");
        }
        // Vectors cannot be quantised, but can be stored as another float.
        assert_eq!(stored(&options, NORM, &[64], bf16), "bf16");
        assert_eq!(stored(&options, "model.layers.2.mlp.up_proj.bias", &[64], bf16), "f16");
    }

    #[test]
    fn what_was_not_done_as_asked_is_reported() {
        let options = ConvertOptions::new(q("q4t")).with_override("*.mlp.gate.*", q("q8"));
        let planner = Planner::new(&options).unwrap();
        let choice = planner.choose(&tensor(UP, &[64, 48], NativeDtype::F32));
        assert_eq!((choice.encoding, choice.instead_of), (Encoding::Q8_2f, Some(Encoding::Q4Tiled)));
        let router = planner.choose(&tensor(ROUTER, &[8, 64], NativeDtype::F32));
        assert!(router.forced && router.encoding == Encoding::Q8Row);
        let narrow = ConvertOptions::new(q("q8")).with_override(UP, q("q1"));
        let choice = Planner::new(&narrow).unwrap().choose(&tensor(UP, &[64, 48], NativeDtype::F32));
        assert_eq!((choice.encoding, choice.instead_of), (Encoding::Q8_2f, Some(Encoding::Q1)));
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let options = ConvertOptions::new(q("q8")).with_override("a[", q("q4"));
        let text = Planner::new(&options).err().unwrap().to_string();
        assert!(text.contains("`a[`"), "{text}");
    }

    #[test]
    fn labels() {
        for (quant, label) in [
            ("q8", QuantType::Q8Row),
            ("q8_2f", QuantType::Q8_2f),
            ("q4", QuantType::Q4Block),
            ("q4t", QuantType::Q4Block),
            ("f16", QuantType::F16),
            ("vbit", QuantType::Vbit),
            ("q1", QuantType::Vbit),
            ("q1p", QuantType::Vbit),
            ("q1s", QuantType::Vbit),
        ] {
            assert_eq!(quant_type(&q(quant)), label, "{quant}");
        }
    }
}
