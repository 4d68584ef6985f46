//! Architecture `smollm3`: rows of q and k are stored in pair order, as in `llama`. Files do not say which layers
//! rotate; all but every fourth do.

use super::GgufError;
use super::block::{self, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;

pub(super) const FAMILY: Family = Family { arch: "smollm3", heads: HeadKeys::Uniform, reads: &[], build };

/// Every so many layers one does not rotate.
const PERIOD: usize = 4;

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let mut model = block::dense(source, "smollm3", &Parts { paired_rope: true, ..Parts::default() })?;
    let rotates: Vec<bool> = (1..=source.hyper.layers).map(|number| !number.is_multiple_of(PERIOD)).collect();
    if rotates.contains(&false) {
        model.arch.rope_layers = Some(rotates);
    }
    Ok(model)
}
