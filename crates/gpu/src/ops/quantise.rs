//! int8 copies of an activation.

use super::source;
use crate::GpuError;
use crate::kernel::{Bind, fold};
use crate::plan::{Activation, Quantised, Recorder, Rows};
use crate::shader::wgsl;

/// Threads of a workgroup: few, so that one row spreads over several workgroups.
const THREADS: u32 = 64;

/// Packs `sets` copies of `x`, each times its own factors of the columns when `fields` (`[sets, stride]`) is given.
pub(crate) fn quantise(
    rec: &mut Recorder<'_>,
    x: &Activation,
    fields: Option<&wgpu::Buffer>,
    sets: usize,
    out: &Quantised,
    rows: Rows,
) -> Result<(), GpuError> {
    let groups = x.stride / 32;
    let field = if fields.is_some() { wgsl!("lib/field.wgsl") } else { wgsl!("lib/no_field.wgsl") };
    let source = source(rec, "quantise", wgsl!("quantise.wgsl"), THREADS)
        .with("GROUPS", groups)
        .with("SET_ROWS", out.rows)
        .part(wgsl!("lib/int8.wgsl"))
        .part(field);
    let mut binds = vec![Bind::read(1, &x.buffer), Bind::write(2, &out.codes), Bind::write(3, &out.scales)];
    binds.extend(fields.map(|fields| Bind::read(4, fields)));
    let across = (groups as u32).div_ceil(THREADS);
    let sets = sets as u32;
    rec.dispatch(&source, &binds, move |size| {
        let [x, y, z] = fold(across, rows.count(size));
        debug_assert_eq!(z, 1, "a step has fewer rows than a grid may have");
        [x, y, sets]
    })
}
