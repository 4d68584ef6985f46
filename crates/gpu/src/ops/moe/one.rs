//! One token with int8 activations: every workgroup brings them to its own memory, and a lane has all the weights that
//! it needs on their way at once, or nearly so.

use super::experts::{Experts, Pool};
use crate::Caps;
use crate::kernel::{WORKGROUP, team_size};
use crate::ops::Codes;
use crate::plan::{Class, Recorder};
use crate::shader::{Source, wgsl};
use crate::weights::Layout;

/// Bytes that the kernels keep beside the activations, at most: 256 jobs or neurons, and sums.
const BESIDE: usize = 4096;

/// Columns of all of a token's activations that these kernels take together.
pub(crate) fn most_cols(caps: &Caps, codes: Codes) -> usize {
    (caps.workgroup_memory as usize).saturating_sub(BESIDE) / (40 * codes.count()) * 32
}

/// How the lanes of a team share groups of activations: `turns` times `span` groups each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turns {
    groups: usize,
    span: usize,
    turns: usize,
}

impl Turns {
    /// For `groups` groups, at most `most` of which a lane takes at a time.
    fn new(groups: usize, team: usize, most: usize) -> Self {
        let per_lane = groups.div_ceil(team).max(1);
        let turns = per_lane.div_ceil(most);
        Self { groups, span: per_lane.div_ceil(turns), turns }
    }

    /// Bytes of workgroup memory: codes, scale, and scale times sum of every group, once per code of a value.
    fn memory(self, team: usize, codes: Codes) -> usize {
        codes.count() * self.turns * self.span * team * 40
    }

    /// Constants and snippet of the activations.
    pub(super) fn with_x(self, source: Source) -> Source {
        source
            .with("X_GROUPS", self.groups)
            .with("SPAN", self.span)
            .with("TURNS", self.turns)
            .part(wgsl!("lib/moe_x.wgsl"))
    }
}

/// Whether a block of 32 weights takes few registers.
fn is_light(layout: Layout) -> bool {
    matches!(layout, Layout::Q4 | Layout::Q1 | Layout::Q1Overlay | Layout::Ternary)
}

/// Groups of `groups` for `moe_gate_up_int8_one`, if it takes the step.
pub(super) fn gate_up_turns(rec: &Recorder<'_>, pool: &Pool) -> Option<Turns> {
    turns(rec, pool.cols() / 32, if is_light(pool.layout()) { 2 } else { 1 })
}

/// As [`gate_up_turns`], for `moe_down_int8_one`: the groups of all jobs.
pub(super) fn down_turns(rec: &Recorder<'_>, experts: &Experts, pool: &Pool) -> Option<Turns> {
    let jobs = experts.numbers.jobs;
    let groups = jobs * pool.cols() / 32;
    turns(rec, groups, if is_light(pool.layout()) { 6 } else { 3 }).filter(|_| jobs <= WORKGROUP as usize)
}

fn turns(rec: &Recorder<'_>, groups: usize, most: usize) -> Option<Turns> {
    let team = team_size(rec.gpu, WORKGROUP) as usize;
    let found = Turns::new(groups, team, most);
    let fits = found.memory(team, rec.codes) + BESIDE <= rec.gpu.caps().workgroup_memory as usize;
    (rec.class == Class::One && fits).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_cover_all_groups() {
        for (groups, most, expected) in
            [(64, 2, (2, 1)), (192, 6, (6, 1)), (144, 6, (5, 1)), (896, 6, (6, 5)), (1, 3, (1, 1))]
        {
            let found = Turns::new(groups, 32, most);
            assert_eq!((found.span, found.turns), expected, "{groups} groups");
            assert!(found.span * found.turns * 32 >= groups);
        }
    }
}
