//! `cortiq doctor`: the configuration in force, what the machine has, and what would be used and why.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cortiq_cpu::{BANDWIDTH_BYTES, CpuOptions, Isa, read_bandwidth};
use cortiq_gpu::{Adapter, AdapterChoice, Budget, Caps, Precision, kernel_variants, submit_latency};
use cortiq_hybrid::Timing;
use serde::Serialize;

use crate::config::{Config, Origin, Setting};
use crate::model_options::{
    ExecutorName, ExecutorOptions, FileOptions, context_of, open_engine, open_file, placed, uses_gpu,
};
use crate::output::{human_bytes, print_json, print_text, table};
use crate::synthetic::check_memory;

/// Passes over memory when its bandwidth is measured; the best counts.
const BANDWIDTH_PASSES: usize = 3;

/// Flags of `doctor`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    cortiq doctor                       the configuration, the CPU, every GPU, and what is used\n  \
    cortiq doctor model.cmf             also where this model's parts would run, and the times that say so\n  \
    cortiq doctor --software-gpu --json\n\n\
    Flags of the other commands show what they would change. Software GPUs are measured with --software-gpu only.")]
pub struct Args {
    /// Say where this model would run
    model: Option<PathBuf>,
    /// Measure nothing
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    executor: ExecutorOptions,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    configuration: Vec<Row>,
    cpu: Cpu,
    gpus: Vec<Gpu>,
    /// Which GPU the gpu executor opens, or why none.
    gpu: String,
    executor: Verdict,
    /// Where the model's parts run.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Placed>,
}

#[derive(Serialize)]
struct Placed {
    executor: &'static str,
    placement: String,
    /// Microseconds from a submission to its result, where it was measured.
    latency_us: Option<f64>,
    timings: Vec<Timed>,
}

/// One kind of work on both sides.
#[derive(Serialize)]
struct Timed {
    work: &'static str,
    layer: Option<usize>,
    rows: usize,
    cpu_us: f64,
    gpu_us: f64,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    value: String,
    origin: String,
}

#[derive(Serialize)]
struct Cpu {
    kernels: &'static str,
    available_kernels: Vec<&'static str>,
    threads: usize,
    processors: usize,
    read_bandwidth_gb_s: Option<f64>,
    note: Option<String>,
}

#[derive(Serialize)]
struct Gpu {
    name: String,
    interface: String,
    driver: String,
    kind: &'static str,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    budget_bytes: Option<u64>,
    budget_origin: String,
    limits: Limits,
    features: Features,
    read_bandwidth_gb_s: Option<f64>,
    submit_latency_us: Option<f64>,
    /// Why nothing was measured.
    note: Option<String>,
    kernels: Vec<Kernel>,
}

#[derive(Serialize)]
struct Limits {
    binding_bytes: u64,
    buffer_bytes: u64,
    workgroup_memory_bytes: u32,
}

#[derive(Serialize)]
struct Features {
    subgroup: Option<u32>,
    f16: bool,
    matrix_units: Option<u32>,
    timestamps: bool,
}

#[derive(Serialize)]
struct Kernel {
    purpose: &'static str,
    variant: String,
    reason: String,
}

/// What `--executor auto` means.
#[derive(Serialize)]
struct Verdict {
    auto: &'static str,
    reason: String,
}

/// Looks at everything and prints it.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<()> {
    let config = with_flags(config, &args.executor);
    let choice = args.executor.gpu.adapter(&config);
    let adapters = Adapter::all(choice.backend);
    let precision = args.executor.gpu.precision.into();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        configuration: configuration(&config, &args.executor),
        cpu: cpu(&config, args.quick),
        gpus: adapters.iter().map(|adapter| gpu(adapter, &choice, &config, precision, args.quick)).collect(),
        executor: verdict(&config, choice.pick(&adapters).is_ok()),
        gpu: match choice.pick(&adapters) {
            Ok(adapter) => adapter.caps().adapter.name.clone(),
            Err(error) => format!("none ({error})"),
        },
        model: args.model.as_deref().map(|path| place(path, args, &config)).transpose()?,
    };
    if args.json { print_json(&report) } else { print_text(&described(&report)) }
}

/// The configuration with what flags say in its place.
fn with_flags(config: &Config, flags: &ExecutorOptions) -> Config {
    let mut config = config.clone();
    config.threads = config.threads.or_flag("--threads", flags.threads.map(usize::from));
    config.kv = config.kv.or_flag("--kv", flags.kv.map(Into::into));
    config.gpu.backend = flags.gpu.backend(&config);
    config.gpu.vram_mib = config.gpu.vram_mib.or_flag("--vram", flags.gpu.vram);
    config.gpu.layers = flags.gpu.layers(&config);
    config
}

fn configuration(config: &Config, flags: &ExecutorOptions) -> Vec<Row> {
    let origin = |origin: Origin, variable: &str| match origin {
        Origin::Default => format!("default ({variable} is not set)"),
        Origin::Environment(name) | Origin::Flag(name) => name.to_owned(),
    };
    let flag = |name, flag: &'static str, value: &str, default: bool| {
        let origin = if default { "default".to_owned() } else { flag.to_owned() };
        Row { name, value: value.to_owned(), origin }
    };
    let executor = match flags.executor {
        ExecutorName::Auto => "auto",
        ExecutorName::Cpu => "cpu",
        ExecutorName::Gpu => "gpu",
        ExecutorName::Reference => "reference",
    };
    let precision = Precision::from(flags.gpu.precision);
    let precision_name = if precision == Precision::Exact { "exact" } else { "fast" };
    let software = if flags.gpu.software_gpu { "accepted" } else { "refused" };
    let mut rows = vec![
        flag("executor", "--executor", executor, flags.executor == ExecutorName::Auto),
        flag("precision", "--precision", precision_name, precision == Precision::default()),
        flag("software GPUs", "--software-gpu", software, !flags.gpu.software_gpu),
    ];
    rows.extend(config.shown().into_iter().map(|shown| Row {
        name: shown.name,
        value: shown.value,
        origin: origin(shown.origin, shown.variable),
    }));
    rows
}

fn cpu(config: &Config, quick: bool) -> Cpu {
    let threads = config.threads.value.unwrap_or_else(|| CpuOptions::default().threads);
    let room = check_memory(BANDWIDTH_BYTES as u64, "measuring the read bandwidth");
    let note = match &room {
        _ if quick => Some("not measured (--quick)".to_owned()),
        Ok(()) => None,
        Err(error) => Some(format!("not measured: {error}")),
    };
    Cpu {
        kernels: Isa::detect().name(),
        available_kernels: Isa::available().into_iter().map(Isa::name).collect(),
        threads,
        processors: std::thread::available_parallelism().map_or(1, Into::into),
        read_bandwidth_gb_s: note.is_none().then(|| read_bandwidth(threads, BANDWIDTH_PASSES) / 1e9),
        note,
    }
}

fn kind(caps: &Caps) -> &'static str {
    match (caps.adapter.software, caps.adapter.discrete) {
        (true, _) => "software",
        (false, true) => "discrete",
        (false, false) => "shared memory",
    }
}

fn gpu(adapter: &Adapter, choice: &AdapterChoice, config: &Config, precision: Precision, quick: bool) -> Gpu {
    let (caps, memory) = (adapter.caps(), adapter.memory());
    let asked: Setting<Option<u64>> = config.gpu.vram_mib.map(|mib| mib.map(|mib| mib.saturating_mul(1 << 20)));
    let budget = Budget::of(asked.value, memory, caps);
    let origin = if asked.value.is_some() { asked.origin.to_string() } else { budget.origin.to_string() };
    let measured = match (quick, caps.adapter.software && !choice.allow_software) {
        (true, _) => Err("not measured (--quick)".to_owned()),
        (_, true) => Err("not measured: it is software, and --software-gpu was not given".to_owned()),
        _ => measure(adapter).map_err(|error| format!("cannot be used: {error}")),
    };
    Gpu {
        name: caps.adapter.name.clone(),
        interface: caps.adapter.backend.clone(),
        driver: caps.adapter.driver.clone(),
        kind: kind(caps),
        memory_bytes: memory.total,
        free_bytes: memory.free,
        budget_bytes: budget.bytes,
        budget_origin: origin,
        limits: Limits {
            binding_bytes: caps.max_binding,
            buffer_bytes: caps.max_buffer,
            workgroup_memory_bytes: caps.workgroup_memory,
        },
        features: Features {
            subgroup: caps.subgroup,
            f16: caps.f16,
            matrix_units: caps.coop.map(|shape| shape.size),
            timestamps: caps.timestamps,
        },
        read_bandwidth_gb_s: measured.as_ref().ok().map(|(bandwidth, _)| bandwidth / 1e9),
        submit_latency_us: measured.as_ref().ok().map(|(_, latency)| latency * 1e6),
        note: measured.err(),
        kernels: kernel_variants(caps, precision)
            .into_iter()
            .map(|row| Kernel { purpose: row.purpose, variant: row.variant, reason: row.reason })
            .collect(),
    }
}

/// Bytes per second of reads, and seconds of an empty submission.
fn measure(adapter: &Adapter) -> Result<(f64, f64), cortiq_gpu::GpuError> {
    let gpu = adapter.open()?;
    Ok((cortiq_gpu::read_bandwidth(&gpu)?, submit_latency(&gpu)?))
}

/// Opens a model as `run` would, and says where its parts are.
fn place(path: &Path, args: &Args, config: &Config) -> anyhow::Result<Placed> {
    let file = open_file(path, false)?;
    let context = context_of(&file, None, config);
    let options = FileOptions { owned: false, skill: None, task: None };
    let engine = open_engine(path, file, &args.executor, &options, &context, config)?;
    let placement = engine.placement();
    let probe = placement.and_then(|placement| placement.probe.as_ref());
    let timed = |timing: &Timing| {
        let Timing { name, layer, rows, cpu, gpu } = *timing;
        Timed { work: name, layer, rows, cpu_us: cpu * 1e6, gpu_us: gpu * 1e6 }
    };
    Ok(Placed {
        executor: engine.executor_name(),
        placement: placement.map_or_else(|| "everything on the CPU".to_owned(), placed),
        latency_us: probe.map(|probe| probe.latency * 1e6),
        timings: probe.map_or_else(Vec::new, |probe| probe.timings.iter().map(timed).collect()),
    })
}

/// What `--executor auto` does with any model, when a GPU that may be used was `found` or not.
fn verdict(config: &Config, found: bool) -> Verdict {
    let uses_gpu = uses_gpu(ExecutorName::Auto.choose(config).value, || found);
    let reason = match (config.gpu.enabled.value, uses_gpu) {
        (Some(true), _) => "CMF_GPU asks for it",
        (Some(false), _) => "CMF_GPU says never to use a GPU",
        (None, true) if config.gpu.probe.value => "for what it measures to be faster at (`cortiq doctor MODEL`)",
        (None, true) => "CMF_GPU_PROBE says to trust it",
        (None, false) => "there is no GPU that may be used",
    };
    Verdict { auto: if uses_gpu { "gpu" } else { "cpu" }, reason: reason.to_owned() }
}

/// The report for people. Writing to a string cannot fail.
fn described(report: &Report) -> String {
    let mut text = format!("cortiq {}\n\nConfiguration\n", report.version);
    let row = |row: &Row| vec![format!("  {}", row.name), row.value.clone(), row.origin.clone()];
    text.push_str(&table(&report.configuration.iter().map(row).collect::<Vec<_>>(), &[]));
    let cpu = &report.cpu;
    let _ = writeln!(text, "\nCPU");
    let _ = writeln!(text, "  kernels    {} (of {})", cpu.kernels, cpu.available_kernels.join(", "));
    let _ = writeln!(text, "  threads    {} on {} processors", cpu.threads, cpu.processors);
    match (cpu.read_bandwidth_gb_s, &cpu.note) {
        (Some(bandwidth), _) => writeln!(text, "  bandwidth  {bandwidth:.1} GB/s read"),
        (None, note) => writeln!(text, "  bandwidth  {}", note.as_deref().unwrap_or("-")),
    }
    .ok();
    if report.gpus.is_empty() {
        let _ = writeln!(text, "\nGPU {}", report.gpu);
    } else {
        report.gpus.iter().for_each(|gpu| describe_gpu(&mut text, gpu));
        let _ = writeln!(text, "\nThe gpu executor opens: {}", report.gpu);
    }
    let _ = writeln!(text, "--executor auto is {}: {}", report.executor.auto, report.executor.reason);
    report.model.iter().for_each(|model| describe_model(&mut text, model));
    text
}

fn describe_model(text: &mut String, model: &Placed) {
    let _ = writeln!(text, "\nModel\n  executor   {}\n  placement  {}", model.executor, model.placement);
    let Some(latency) = model.latency_us else { return };
    let _ = writeln!(text, "  submission {latency:.0} us there and back; us of work without it:");
    let heading = ["    work", "layer", "rows", "CPU", "GPU"].map(str::to_owned).to_vec();
    let row = |timed: &Timed| {
        let layer = timed.layer.map_or_else(String::new, |layer| layer.to_string());
        let [cpu, gpu] = [timed.cpu_us, timed.gpu_us].map(|time| format!("{time:.0}"));
        vec![format!("    {}", timed.work), layer, timed.rows.to_string(), cpu, gpu]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(model.timings.iter().map(row)).collect();
    text.push_str(&table(&rows, &[1, 2, 3, 4]));
}

fn describe_gpu(text: &mut String, gpu: &Gpu) {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), human_bytes);
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    let features = &gpu.features;
    let budget = gpu.budget_bytes.map_or_else(|| "no limit".to_owned(), human_bytes);
    let rows = [
        ("driver", format!("{} ({})", gpu.driver, gpu.interface)),
        ("kind", gpu.kind.to_owned()),
        ("memory", format!("{}, {} free", bytes(gpu.memory_bytes), bytes(gpu.free_bytes))),
        ("budget", format!("{budget} ({})", gpu.budget_origin)),
        (
            "limits",
            format!(
                "{} a binding, {} a buffer, {} bytes of workgroup memory",
                human_bytes(gpu.limits.binding_bytes),
                human_bytes(gpu.limits.buffer_bytes),
                gpu.limits.workgroup_memory_bytes
            ),
        ),
        (
            "features",
            format!(
                "subgroups {}, f16 {}, matrix units {}, timestamps {}",
                features.subgroup.map_or_else(|| "no".to_owned(), |size| format!("of {size}")),
                yes(features.f16),
                features.matrix_units.map_or_else(|| "no".to_owned(), |size| format!("of {size}")),
                yes(features.timestamps)
            ),
        ),
        ("bandwidth", gpu.read_bandwidth_gb_s.map_or_else(String::new, |rate| format!("{rate:.1} GB/s read"))),
        ("submission", gpu.submit_latency_us.map_or_else(String::new, |time| format!("{time:.0} us"))),
        ("note", gpu.note.clone().unwrap_or_default()),
    ];
    let _ = writeln!(text, "\nGPU {}", gpu.name);
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "  {name:<10} {value}");
    }
    let _ = writeln!(text, "  kernels");
    let kernel = |row: &Kernel| vec![format!("    {}", row.purpose), row.variant.clone(), row.reason.clone()];
    text.push_str(&table(&gpu.kernels.iter().map(kernel).collect::<Vec<_>>(), &[]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_is_told_plainly() {
        let config = Config::from_environment().unwrap();
        let choice = AdapterChoice::default();
        let report = Report {
            version: "0",
            configuration: Vec::new(),
            cpu: cpu(&config, true),
            gpus: Vec::new(),
            gpu: format!("none ({})", choice.pick(&[]).err().unwrap()),
            executor: Verdict { auto: "cpu", reason: "because".to_owned() },
            model: None,
        };
        let text = described(&report);
        assert!(text.contains("GPU none (no GPU adapter") && text.contains("auto is cpu: because"), "{text}");
    }
}
