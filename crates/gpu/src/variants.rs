//! Which kernels a device gets, and why: the choices of `ops/` as a table for people.

use crate::kernel::{WORKGROUP, team_of};
use crate::ops::{gemm_choice, grouped_choice, tile_queries};
use crate::weights::Layout;
use crate::{Caps, Precision};

/// A choice among the kernels for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVariant {
    /// What for.
    pub purpose: &'static str,
    /// Name of the variant.
    pub variant: String,
    /// Why this one.
    pub reason: String,
}

/// Everything that depends on the device or on the precision, by the same rules as the recorder's.
pub fn kernel_variants(caps: &Caps, precision: Precision) -> Vec<KernelVariant> {
    let row = |purpose, variant: String, reason: String| KernelVariant { purpose, variant, reason };
    let fast = precision == Precision::Fast;
    let team = team_of(caps, WORKGROUP);
    vec![
        match caps.subgroup {
            Some(size) if team.subgroup => {
                row("sums", format!("subgroups of {size}"), "the device has them".to_owned())
            }
            Some(size) => row("sums", "workgroup memory".to_owned(), format!("subgroups of {size} are too wide")),
            None => {
                row("sums", "workgroup memory".to_owned(), "no subgroup operations, or of no fixed size".to_owned())
            }
        },
        match fast {
            true => row("1 to 16 tokens, packed weights", "int8 activations".to_owned(), "precision fast".to_owned()),
            false => row("1 to 16 tokens, packed weights", "f32 activations".to_owned(), "precision exact".to_owned()),
        },
        products("more tokens, packed weights", caps, precision, Layout::Q4),
        products("more tokens, float weights", caps, precision, Layout::F16),
        experts(caps, precision),
        attention(caps),
        match fast {
            true => row("attention cache", "f16".to_owned(), "precision fast (unless asked otherwise)".to_owned()),
            false => row("attention cache", "f32".to_owned(), "precision exact (unless asked otherwise)".to_owned()),
        },
    ]
}

fn products(purpose: &'static str, caps: &Caps, precision: Precision, layout: Layout) -> KernelVariant {
    let [small, large] = gemm_choice(caps, precision, layout);
    let variant = if small == large { large.to_owned() } else { format!("{small}, {large} from 65 tokens") };
    KernelVariant { purpose, reason: matrix_units(caps, precision, large), variant }
}

fn experts(caps: &Caps, precision: Precision) -> KernelVariant {
    let (variant, chosen) = match grouped_choice(caps, precision) {
        Some(coop) => (format!("coop, tiles of {} jobs by {} rows", coop.tile()[0], coop.tile()[1]), "coop"),
        None => ("plain".to_owned(), "plain"),
    };
    KernelVariant { purpose: "more tokens, experts", variant, reason: matrix_units(caps, precision, chosen) }
}

/// Why products are, or are not, computed by matrix units.
fn matrix_units(caps: &Caps, precision: Precision, chosen: &str) -> String {
    let Some(unit) = caps.coop else {
        return "no matrix units that multiply f16 into f32".to_owned();
    };
    let size = unit.size;
    if chosen.starts_with("coop") {
        return format!("matrix units of {size}");
    }
    match caps.subgroup {
        _ if precision == Precision::Exact => "precision exact keeps f32".to_owned(),
        Some(32) => format!("{} bytes of workgroup memory do not suffice for the matrix units", caps.workgroup_memory),
        _ => format!("matrix units of {size}, but no subgroups of 32"),
    }
}

fn attention(caps: &Caps) -> KernelVariant {
    let (purpose, memory) = ("attention of more tokens", caps.workgroup_memory);
    let (variant, reason) = match tile_queries(caps, 128) {
        Some(queries) => (format!("tiles of {queries} queries"), "fit in"),
        None => ("row by row".to_owned(), "tiles do not fit in"),
    };
    let reason = format!("{reason} {memory} bytes of workgroup memory at 128 dimensions a head");
    KernelVariant { purpose, variant, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterSummary, CoopShape};

    fn caps(subgroup: Option<u32>, coop: Option<u32>, workgroup_memory: u32) -> Caps {
        let (name, backend, driver) = (String::new(), "vulkan".to_owned(), String::new());
        Caps {
            adapter: AdapterSummary { name, backend, driver, software: false, discrete: true },
            subgroup,
            f16: coop.is_some(),
            coop: coop.map(|size| CoopShape { size }),
            timestamps: true,
            max_binding: 1 << 31,
            max_buffer: 1 << 31,
            workgroup_memory,
            max_threads: 1024,
        }
    }

    #[test]
    fn choices_and_reasons() {
        let find = |caps: &Caps, precision, purpose: &str| {
            let all = kernel_variants(caps, precision);
            let row = all.into_iter().find(|row| row.purpose == purpose).unwrap();
            format!("{}: {}", row.variant, row.reason)
        };
        let big = caps(Some(32), Some(16), 48 << 10);
        let (fast, exact) = (Precision::Fast, Precision::Exact);
        let (codes, floats) = ("more tokens, packed weights", "more tokens, float weights");
        for (caps, precision, purpose, words) in [
            (&big, fast, "sums", "subgroups of 32"),
            (&big, fast, floats, "matrix units of 16"),
            (&big, exact, floats, "precision exact"),
            (&big, exact, codes, "precision exact"),
            (&caps(Some(32), Some(16), 16 << 10), fast, floats, "16384 bytes"),
            (&caps(Some(64), Some(16), 48 << 10), fast, floats, "no subgroups of 32"),
            (&caps(Some(128), None, 48 << 10), fast, "sums", "too wide"),
            (&caps(None, None, 48 << 10), fast, "sums", "no subgroup operations"),
            (&caps(None, None, 48 << 10), fast, floats, "no matrix units"),
            (&big, fast, "more tokens, experts", "tiles of 64 jobs by 128 rows: matrix units of 16"),
            (&big, exact, "more tokens, experts", "plain: precision exact"),
            (&big, fast, "attention of more tokens", "tiles of 32 queries"),
            (&caps(None, None, 8 << 10), fast, "attention of more tokens", "row by row"),
        ] {
            let found = find(caps, precision, purpose);
            assert!(found.contains(words), "{purpose}: {found}");
        }
    }
}
