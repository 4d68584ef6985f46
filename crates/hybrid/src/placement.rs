//! Which operations run where.

use std::fmt::{self, Display};
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use cortiq_model::{Op, Program};

use crate::HybridError;

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// On the cpu executor.
    Cpu,
    /// On the gpu executor.
    Gpu,
}

/// Which layers a GPU gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as its memory holds, the first ones first; the head when all of them fit.
    #[default]
    Fit,
    /// These and no others, whatever the memory.
    These(Vec<RangeInclusive<usize>>),
}

impl Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::These(ranges) = self else { return f.write_str("as many as fit") };
        for (i, range) in ranges.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for GpuLayers {
    type Err = HybridError;

    /// Reads `0-19,30`: numbers and ranges of layers, from 0 on, both ends included.
    fn from_str(text: &str) -> Result<Self, HybridError> {
        let wrong = || HybridError::LayerList(text.to_owned());
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let range = |item: &str| match item.split_once('-') {
            Some((first, last)) => Ok(number(first)?..=number(last)?),
            None => number(item).map(|layer| layer..=layer),
        };
        let ranges: Vec<_> = text.split(',').map(range).collect::<Result<_, HybridError>>()?;
        if ranges.iter().any(RangeInclusive::is_empty) {
            return Err(wrong());
        }
        Ok(Self::These(ranges))
    }
}

/// Which layers leave their experts on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuExperts {
    /// None: experts are where their layer is.
    #[default]
    None,
    /// The first so many of the layers that have experts.
    First(usize),
    /// All of them.
    All,
}

/// The sides of the parts of every layer that a GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sides {
    /// Everything of a layer that is not its FFN or its experts.
    pub(crate) mixer: Side,
    /// The FFN or the experts.
    pub(crate) ffn: Side,
    /// The final norm and the head.
    pub(crate) head: Side,
}

impl Sides {
    /// Everything on one side.
    pub(crate) fn all(side: Side) -> Self {
        Self { mixer: side, ffn: side, head: side }
    }
}

/// The side of every operation of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    sides: Vec<Side>,
    /// Layers of which at least one operation runs on the GPU.
    layers: usize,
}

impl Placement {
    /// `sides` for the layers of which `on_gpu` is true; what the others have stays on the CPU. The embedding is a
    /// look-up: it stays there too, unless nothing else does.
    pub(crate) fn new(program: &Program, on_gpu: &[bool], experts: CpuExperts, sides: Sides) -> Self {
        let mut placed = vec![sides.head; program.ops.len()];
        let first = program.layers.first().map_or(0, |layer| layer.start);
        placed[..first].fill(Side::Cpu);
        let (mut seen, mut layers) = (0, 0);
        for (layer, on_gpu) in program.layers.iter().zip(on_gpu) {
            for (side, op) in placed[layer.clone()].iter_mut().zip(&program.ops[layer.clone()]) {
                *side = match op {
                    _ if !on_gpu => Side::Cpu,
                    Op::Moe(_) if experts_stay(experts, seen) => Side::Cpu,
                    op if op.is_ffn() => sides.ffn,
                    _ => sides.mixer,
                };
            }
            seen += usize::from(program.ops[layer.clone()].iter().any(|op| matches!(op, Op::Moe(_))));
            layers += usize::from(placed[layer.clone()].contains(&Side::Gpu));
        }
        if !placed[first..].contains(&Side::Cpu) {
            placed[..first].fill(Side::Gpu);
        }
        Self { sides: placed, layers }
    }

    /// By operation.
    pub(crate) fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// Layers of which at least one operation runs on the GPU.
    pub(crate) fn gpu_layers(&self) -> usize {
        self.layers
    }

    /// Whether every operation runs on `side`.
    pub(crate) fn is_all(&self, side: Side) -> bool {
        self.sides.iter().all(|own| *own == side)
    }

    /// The side of the head.
    pub(crate) fn head(&self) -> Side {
        self.sides.last().copied().unwrap_or(Side::Cpu)
    }

    /// Consecutive operations of one side.
    pub(crate) fn runs(&self) -> Vec<(Side, Range<usize>)> {
        let mut at = 0;
        let runs = self.sides.chunk_by(|a, b| a == b).map(|run| {
            let start = at;
            at += run.len();
            (run[0], start..at)
        });
        runs.collect()
    }

    /// Those of the GPU.
    pub(crate) fn gpu_parts(&self) -> Vec<Range<usize>> {
        self.runs().into_iter().filter(|(side, _)| *side == Side::Gpu).map(|(_, part)| part).collect()
    }
}

/// Whether the experts of the layer stay that has `seen` layers with experts before it.
fn experts_stay(experts: CpuExperts, seen: usize) -> bool {
    match experts {
        CpuExperts::None => false,
        CpuExperts::First(count) => seen < count,
        CpuExperts::All => true,
    }
}

/// Which of `count` layers a list names.
pub(crate) fn named(ranges: &[RangeInclusive<usize>], count: usize) -> Result<Vec<bool>, HybridError> {
    if let Some(layer) = ranges.iter().map(|range| *range.end()).find(|last| *last >= count) {
        return Err(HybridError::NoSuchLayer { layer, layers: count });
    }
    Ok((0..count).map(|layer| ranges.iter().any(|range| range.contains(&layer))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_layers() {
        let these = |ranges: &[RangeInclusive<usize>]| Some(GpuLayers::These(ranges.to_vec()));
        let cases = [
            ("0-19,30", these(&[0..=19, 30..=30])),
            ("3", these(&[3..=3])),
            (" 1 - 2 , 4", these(&[1..=2, 4..=4])),
            ("", None),
            ("5-2", None),
            ("1-", None),
            ("-1", None),
            ("1,,2", None),
            ("a", None),
            ("99999999999999999999999", None),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<GpuLayers>().ok(), expected, "{text}");
            let again = expected.as_ref().map(|layers| layers.to_string().parse::<GpuLayers>().unwrap());
            assert_eq!(again, expected, "{text}");
        }
        assert_eq!(named(&[0..=1, 3..=3], 5).unwrap(), [true, true, false, true, false]);
        assert!(matches!(named(&[0..=5], 5), Err(HybridError::NoSuchLayer { layer: 5, layers: 5 })));
    }
}
