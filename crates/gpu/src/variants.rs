//! Which kernels a device gets, and why: the choices of `ops/` as a table for people.

use crate::kernel::{WORKGROUP, team_of};
use crate::ops::{
    Codes, SHORT_CONTEXT, fits_short, gemm_choice, grouped_choice, most_cols, most_expert_cols, tile_queries, top_slice,
};
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
    /// The files in `shaders/` that run, without their extension; none for a choice among snippets.
    pub shaders: &'static [&'static str],
}

/// Kernels that every device runs alike; the operation's sizes and the number of tokens decide the rest.
pub const KERNELS_WITHOUT_VARIANTS: [&str; 24] = [
    "attention_join",
    "concat",
    "delta_mix",
    "delta_norm",
    "embed",
    "embed_overlay",
    "gated_delta",
    "gather",
    "glu",
    "mla_absorb",
    "mla_attention",
    "mla_expand",
    "mla_store",
    "moe_route",
    "norm",
    "norm_in_place",
    "overlay",
    "qk_norm_rope_store",
    "read",
    "residual",
    "scale",
    "short_conv",
    "softcap",
    "split_gate",
];

/// Everything that depends on the device or on the precision, by the same rules as the recorder's.
pub fn kernel_variants(caps: &Caps, precision: Precision) -> Vec<KernelVariant> {
    let mut all = vec![sums(caps)];
    all.extend(few_tokens(caps, precision));
    all.push(products("more tokens, packed weights", caps, precision, Layout::Q4));
    all.push(products("more tokens, float weights", caps, precision, Layout::F16));
    all.extend(experts(caps, precision));
    all.extend([short_attention(caps), attention(caps)]);
    all.push(row(
        "best tokens",
        format!("slices of {} logits", top_slice(caps)),
        format!("fit in {} bytes of workgroup memory", caps.workgroup_memory),
        &["top_slice", "top_join"],
    ));
    all.push(match precision {
        Precision::Fast => row("attention cache", "f16", "precision fast (unless asked otherwise)", &[]),
        Precision::Exact => row("attention cache", "f32", "precision exact (unless asked otherwise)", &[]),
    });
    all
}

fn row(
    purpose: &'static str,
    variant: impl Into<String>,
    reason: impl Into<String>,
    shaders: &'static [&'static str],
) -> KernelVariant {
    KernelVariant { purpose, variant: variant.into(), reason: reason.into(), shaders }
}

fn sums(caps: &Caps) -> KernelVariant {
    let team = team_of(caps, WORKGROUP);
    match caps.subgroup {
        Some(size) if team.subgroup => row("sums", format!("subgroups of {size}"), "the device has them", &[]),
        Some(size) => row("sums", "workgroup memory", format!("subgroups of {size} are too wide"), &[]),
        None => row("sums", "workgroup memory", "no subgroup operations, or of no fixed size", &[]),
    }
}

/// Products of up to 16 tokens.
fn few_tokens(caps: &Caps, precision: Precision) -> Vec<KernelVariant> {
    let floats = row("1 to 16 tokens, float weights", "f32 activations", "weights without codes", &["matvec"]);
    let (one, more) = ("1 token, packed weights", "2 to 16 tokens, packed weights");
    if precision == Precision::Exact {
        let exact = |purpose| row(purpose, "f32 activations", "precision exact", &["matvec"]);
        return vec![exact(one), exact(more), floats];
    }
    let (once, twice) = (most_cols(caps, Codes::One), most_cols(caps, Codes::Two));
    let wide = format!("{} threads, {} bytes of workgroup memory", caps.max_threads, caps.workgroup_memory);
    vec![
        row(
            one,
            format!("packed by the product up to {once} columns ({twice} with two codes), before it beyond"),
            wide,
            &["matvec_fused", "gated_fused"],
        ),
        row(more, "int8 activations", "precision fast", &["matvec_int8", "norm_int8", "quantise"]),
        row(
            "codes of an int8 activation",
            "one; two with gated delta nets or latent attention",
            "precision fast; those amplify what one is off by",
            &[],
        ),
        floats,
    ]
}

/// Products with the experts of a mixture.
fn experts(caps: &Caps, precision: Precision) -> [KernelVariant; 3] {
    let (one, more) = ("experts of 1 token", "experts of 2 to 16 tokens");
    let purpose = "experts of more tokens";
    let many = match grouped_choice(caps, precision) {
        Some(coop) => {
            let [jobs, rows] = coop.tile();
            let variant = format!("coop, tiles of {jobs} jobs by {rows} rows");
            let shaders = &["moe_group", "gemm_coop", "half_copy", "moe_combine"];
            row(purpose, variant, matrix_units(caps, precision, "coop"), shaders)
        }
        None => {
            let shaders = &["moe_group", "moe_gemm", "moe_combine"];
            row(purpose, "plain", matrix_units(caps, precision, "plain"), shaders)
        }
    };
    match precision {
        Precision::Exact => {
            let exact = |purpose| row(purpose, "f32 activations", "precision exact", &["moe_gate_up", "moe_down"]);
            [exact(one), exact(more), many]
        }
        Precision::Fast => {
            let cols = most_expert_cols(caps, Codes::One);
            let variant = format!("int8 activations at hand up to {cols} columns of all experts");
            let reason = format!("{} bytes of workgroup memory", caps.workgroup_memory);
            [
                row(one, variant, reason, &["moe_gate_up_int8_one", "moe_down_int8_one"]),
                row(more, "int8 activations", "precision fast", &["moe_gate_up_int8", "moe_down_int8"]),
                many,
            ]
        }
    }
}

fn products(purpose: &'static str, caps: &Caps, precision: Precision, layout: Layout) -> KernelVariant {
    let [small, large] = gemm_choice(caps, precision, layout);
    let variant = if small == large { large.to_owned() } else { format!("{small}, {large} from 65 tokens") };
    let shaders: &[&str] = match large {
        "int8" => &["gemm_int8", "quantise"],
        _ if large.starts_with("coop") => &["gemm_coop", "half_copy"],
        _ => &["gemm_small", "gemm"],
    };
    row(purpose, variant, matrix_units(caps, precision, large), shaders)
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

fn short_attention(caps: &Caps) -> KernelVariant {
    let (purpose, memory) = ("attention of 1 token", caps.workgroup_memory);
    let reason = |fits: &str| format!("{fits} {memory} bytes of workgroup memory at 128 dimensions a head");
    if fits_short(caps, 128) {
        let variant = format!("one dispatch up to {SHORT_CONTEXT} positions, beyond by ranges of keys");
        return row(purpose, variant, reason("fits in"), &["attention_short", "attention_split"]);
    }
    row(purpose, "by ranges of keys", reason("scores do not fit in"), &["attention_split"])
}

fn attention(caps: &Caps) -> KernelVariant {
    let (purpose, memory) = ("attention of more tokens", caps.workgroup_memory);
    let reason = |fits: &str| format!("{fits} {memory} bytes of workgroup memory at 128 dimensions a head");
    match tile_queries(caps, 128) {
        Some(queries) => row(purpose, format!("tiles of {queries} queries"), reason("fit in"), &["attention_tile"]),
        None => row(purpose, "row by row", reason("tiles do not fit in"), &["attention_split"]),
    }
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
            (&big, fast, "experts of more tokens", "tiles of 64 jobs by 128 rows: matrix units of 16"),
            (&big, exact, "experts of more tokens", "plain: precision exact"),
            (&big, fast, "attention of more tokens", "tiles of 32 queries"),
            (&caps(None, None, 8 << 10), fast, "attention of more tokens", "row by row"),
            (&big, exact, "best tokens", "slices of 2048"),
            (&caps(None, None, 16 << 10), fast, "best tokens", "slices of 1024"),
            (&big, fast, "attention of 1 token", "one dispatch up to 512"),
            (&caps(None, None, 8 << 10), fast, "attention of 1 token", "scores do not fit"),
            (&big, fast, "1 token, packed weights", "up to 8192 columns (8192 with two codes)"),
            (&caps(None, None, 16 << 10), fast, "1 token, packed weights", "up to 8192 columns (4896 with two codes)"),
            (&big, exact, "1 token, packed weights", "precision exact"),
            (&big, exact, "experts of 1 token", "precision exact"),
            (&big, fast, "experts of 2 to 16 tokens", "int8"),
        ] {
            let found = find(caps, precision, purpose);
            assert!(found.contains(words), "{purpose}: {found}");
        }
    }

    /// Every shader is in the table of some device, or among those without variants, and nothing else is.
    #[test]
    fn every_shader_has_its_place() {
        let devices = [caps(Some(32), Some(16), 48 << 10), caps(None, None, 32 << 10), caps(None, None, 8 << 10)];
        let mut named: Vec<&str> = KERNELS_WITHOUT_VARIANTS.to_vec();
        for precision in [Precision::Fast, Precision::Exact] {
            let rows = devices.iter().flat_map(|caps| kernel_variants(caps, precision));
            named.extend(rows.flat_map(|row| row.shaders));
        }
        named.sort_unstable();
        named.dedup();
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| {
                entry.unwrap().file_name().to_str().and_then(|name| name.strip_suffix(".wgsl")).map(str::to_owned)
            })
            .collect();
        files.sort_unstable();
        assert_eq!(named, files);
    }
}
