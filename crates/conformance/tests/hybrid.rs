//! Models on a CPU and a GPU together: cuts anywhere give the logits of the uncut model, a budget decides how much goes
//! to the GPU, a lost device is replaced, and the CPU answers while a GPU is loaded.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cortiq_conformance::{Model, Piece, alone, convert_fixture, golden, max_abs_diff, open_model, step};
use cortiq_cpu::CpuOptions;
use cortiq_gpu::{AdapterChoice, Gpu, GpuError, GpuOptions, Need, Precision};
use cortiq_hybrid::{
    ArmOptions, CpuExperts, GpuLayers, GpuPlan, HybridError, Loading, PlacementReport, Probe, Side, Supervisor, open,
    open_on,
};
use cortiq_model::{Batch, DraftInput, DraftSource, Executor, ModelError, Op, Span, StateLimits};
use cortiq_quant::Encoding;

const LIMITS: StateLimits = StateLimits { max_positions: 512, max_bytes: 1 << 30 };

fn fixture(name: &str) -> Model {
    let folder = tempfile::tempdir().unwrap();
    open_model(&convert_fixture(name, Encoding::F32, folder.path()))
}

fn options() -> ArmOptions {
    let gpu = GpuOptions::new(LIMITS).with_precision(Precision::Exact);
    ArmOptions { cpu: CpuOptions { threads: 2, ..CpuOptions::default() }, cpu_limits: LIMITS, gpu }
}

fn software() -> AdapterChoice {
    AdapterChoice { allow_software: true, ..AdapterChoice::default() }
}

/// A GPU that is trusted, with so many of the layers.
fn plan(layers: &str) -> GpuPlan {
    let layers = layers.parse().unwrap();
    GpuPlan { adapter: software(), layers, probe: Probe::Trust, ..GpuPlan::default() }
}

fn opened(model: &Model, plan: &GpuPlan, options: ArmOptions) -> Result<(Supervisor, PlacementReport), HybridError> {
    open(model.program(), Arc::clone(&model.weights), plan, options)
}

/// Every cut gives the logits of the cpu executor, whether tokens come one by one, a few or many at a time.
fn check_cuts(name: &str) {
    let model = fixture(name);
    let mut cpu = model.cpu(2);
    let mut ids = golden(name).sequences.swap_remove(2).input_ids;
    ids.truncate(24);
    let expected = alone(&mut cpu, &ids, ids.len());
    let last = model.program().layers.len() - 1;
    let with_experts = |experts| GpuPlan { experts, ..plan(&format!("0-{last}")) };
    let plans = [
        (plan("0"), 1),
        (plan(&last.to_string()), 1),
        (plan(&format!("0,{last}")), 2),
        (with_experts(CpuExperts::All), last + 1),
        (with_experts(CpuExperts::First(1)), last + 1),
    ];
    let has_experts = model.program().ops.iter().any(|op| matches!(op, Op::Moe(_)));
    let plans = plans.into_iter().filter(|(plan, _)| has_experts || plan.experts == CpuExperts::None);
    for (plan, layers) in plans {
        let (mut hybrid, report) = opened(&model, &plan, options()).unwrap();
        assert_eq!((report.gpu_layers, report.layers), (layers, last + 1), "{name} {plan:?}");
        for chunk in [1, 7, 24] {
            let ours = alone(&mut hybrid, &ids, chunk);
            let difference = max_abs_diff(&ours, &expected);
            println!("{name} {:?} {:?}, {chunk} at a time: {difference:.1e}", plan.layers, plan.experts);
            assert!(difference <= 2e-4, "{name} {plan:?}, {chunk} at a time: {difference}");
        }
    }
}

macro_rules! cuts {
    ($($model:ident)*) => {
        mod cuts_give_the_logits_of_the_uncut_model {
            $(#[test] fn $model() { super::check_cuts(stringify!($model)); })*
        }
    };
}

// Attention, windows, experts and latent attention, delta nets with experts, short convolutions.
cuts!(llama_gqa gemma3_text deepseek_v3 qwen3_5_moe lfm2);

/// Snapshots and drafts on both sides of a cut: what was drafted and what is computed after a restore is as on the CPU.
#[test]
fn snapshots_and_drafts_cross_the_cut() {
    let model = fixture("qwen3_next");
    let ids = golden("qwen3_next").sequences.swap_remove(2).input_ids;
    let run = |executor: &mut dyn Executor| {
        let sequence = executor.states().open().unwrap();
        let feed = |executor: &mut dyn Executor, start: usize, len: usize| {
            let tokens = &ids[start..start + len];
            step(executor, &[Piece { sequence, start, tokens, known_len: start + len }]).remove(0)
        };
        feed(executor, 0, 20);
        let snapshot = executor.states().snapshot(sequence).unwrap();
        let first = feed(executor, 20, 5);
        executor.states().restore(sequence, snapshot).unwrap();
        assert_eq!(feed(executor, 20, 5), first);
        executor.states().release(snapshot).unwrap();
        let draft = DraftInput { source: DraftSource::Step, rows: &[4], next: &ids[25..26], logit_rows: &[0] };
        let drafted = executor.draft(&draft).unwrap().to_vec();
        executor.states().close(sequence).unwrap();
        [first, drafted].concat()
    };
    assert!(model.program().draft.is_some());
    let expected = run(&mut model.cpu(2));
    let last = model.program().layers.len() - 1;
    for layers in ["0".to_owned(), last.to_string(), format!("1-{last}")] {
        let (mut hybrid, _) = opened(&model, &plan(&layers), options()).unwrap();
        let difference = max_abs_diff(&run(&mut hybrid), &expected);
        assert!(difference <= 2e-4, "{layers}: {difference}");
    }
}

#[test]
fn the_budget_decides_how_many_layers_fit() {
    let model = fixture("llama_gqa");
    let (program, weights) = (model.program(), &*model.weights);
    let count = program.layers.len();
    let need = |part| Need::of(&program, weights, &options().gpu, std::slice::from_ref(&part)).unwrap().total();
    let whole = need(0..program.ops.len());
    let fit = |budget| {
        let gpu = GpuOptions { budget: Some(budget), ..options().gpu };
        let plan = GpuPlan { layers: GpuLayers::Fit, ..plan("0") };
        opened(&model, &plan, ArmOptions { gpu, ..options() })
    };
    let (all, report) = fit(whole).unwrap();
    assert_eq!((report.gpu_layers, report.head, all.name()), (count, Side::Gpu, "gpu"));
    let (mut most, report) = fit(whole - 1).unwrap();
    assert_eq!((report.gpu_layers, report.head, most.name()), (count, Side::Cpu, "cpu and gpu"));
    let ids = golden("llama_gqa").sequences.swap_remove(1).input_ids;
    let expected = alone(&mut model.cpu(1), &ids, 64);
    assert!(max_abs_diff(&alone(&mut most, &ids, 64), &expected) <= 2e-4);
    let one = need(program.layers[0].clone());
    let (_, report) = fit(one).unwrap();
    assert!((1..count).contains(&report.gpu_layers), "{report:?}");
    let refused = fit(1000).err().unwrap();
    assert!(matches!(refused, HybridError::Gpu(GpuError::OverBudget { .. })), "{refused}");
}

#[test]
fn layers_that_do_not_exist_are_refused() {
    let model = fixture("llama_gqa");
    let error = opened(&model, &plan("0-99"), options()).err().unwrap();
    assert!(error.to_string().contains("layer 99"), "{error}");
}

/// The probe measures every kind of work on both sides, and whatever it chooses computes the same.
#[test]
fn the_probe_measures_both_sides() {
    let model = fixture("qwen3_5_moe");
    let plan = GpuPlan { probe: Probe::Measure, layers: GpuLayers::Fit, ..plan("0") };
    let (mut chosen, report) = opened(&model, &plan, options()).unwrap();
    let probe = report.probe.unwrap();
    println!("{} by {probe:#?}", chosen.name());
    // Two kinds of mixers, the experts that both have alike, and the head, for one row and for many.
    assert_eq!(probe.timings.len(), 2 * (2 + 1 + 1));
    assert!(probe.latency > 0.0 && probe.timings.iter().all(|timing| timing.cpu > 0.0 && timing.gpu >= 0.0));
    let ids = golden("qwen3_5_moe").sequences.swap_remove(1).input_ids;
    let expected = alone(&mut model.cpu(1), &ids, 64);
    assert!(max_abs_diff(&alone(&mut chosen, &ids, 64), &expected) <= 2e-4);
}

/// What stays on the CPU anyhow is neither uploaded nor timed.
#[test]
fn the_probe_leaves_out_experts_that_stay() {
    let model = fixture("qwen3_moe");
    let plan = GpuPlan { probe: Probe::Measure, layers: GpuLayers::Fit, experts: CpuExperts::All, ..plan("0") };
    let (_, report) = opened(&model, &plan, options()).unwrap();
    let names: Vec<_> = report.probe.unwrap().timings.iter().map(|timing| timing.name).collect();
    assert!(!names.contains(&"FFN") && names.contains(&"mixer") && names.contains(&"head"), "{names:?}");
}

#[test]
fn a_lost_device_is_replaced_and_given_up_in_the_end() {
    let model = fixture("llama_gqa");
    let ids = golden("llama_gqa").sequences.swap_remove(1).input_ids;
    let expected = alone(&mut model.cpu(1), &ids, 64);
    let gpu = Arc::new(Gpu::open(&software()).unwrap());
    let weights = Arc::clone(&model.weights);
    let (mut guarded, _) = open_on(Arc::clone(&gpu), model.program(), weights, &plan("0"), options()).unwrap();
    let (idle, busy) = (guarded.states().open().unwrap(), guarded.states().open().unwrap());
    guarded.states().close(idle).unwrap();
    let feed = |guarded: &mut Supervisor, start: usize, len: usize| {
        let spans = [Span { sequence: busy, start, len, known_len: 0 }];
        let rows: Vec<usize> = (0..len).collect();
        let batch = Batch { tokens: &ids[start..start + len], spans: &spans, logit_rows: &rows };
        guarded.step(&batch).map(<[f32]>::to_vec)
    };
    feed(&mut guarded, 0, 3).unwrap();
    let snapshot = guarded.states().snapshot(busy).unwrap();
    gpu.destroy();
    let error = feed(&mut guarded, 3, 2).unwrap_err();
    assert!(matches!(error, ModelError::DeviceLost(_)), "{error}");
    // The handles are still good, and hold nothing.
    assert_eq!((guarded.name(), guarded.state().len(busy).unwrap()), ("cpu and gpu", 0));
    assert!(matches!(guarded.states().restore(busy, snapshot), Err(ModelError::DeviceLost(_))));
    guarded.states().release(snapshot).unwrap();
    let logits = feed(&mut guarded, 0, ids.len()).unwrap();
    assert!(max_abs_diff(&logits, &expected) <= 2e-4);
}

#[test]
fn the_cpu_answers_while_a_gpu_is_loaded() {
    let model = fixture("llama_gqa");
    let ids = golden("llama_gqa").sequences.swap_remove(1).input_ids;
    let expected = alone(&mut model.cpu(1), &ids, 64);
    let plan = GpuPlan { loading: Loading::Background, layers: GpuLayers::Fit, ..plan("0") };
    let (mut executor, _) = opened(&model, &plan, options()).unwrap();
    assert_eq!(executor.name(), "cpu");
    let sequence = executor.states().open().unwrap();
    let first = step(&mut executor, &[Piece { sequence, start: 0, tokens: &ids[..2], known_len: 2 }]).remove(0);
    assert!(max_abs_diff(&first, &expected[..first.len()]) <= 2e-4);
    let deadline = Instant::now() + Duration::from_secs(120);
    // Not as long as a sequence holds something.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((executor.states().len(sequence).unwrap(), executor.name()), (2, "cpu"));
    executor.states().truncate(sequence, 0).unwrap();
    while executor.name() != "gpu" {
        assert!(Instant::now() < deadline, "the GPU never took over");
        std::thread::sleep(Duration::from_millis(50));
        executor.states();
    }
    let pieces = [Piece { sequence, start: 0, tokens: &ids, known_len: ids.len() }];
    assert!(max_abs_diff(&step(&mut executor, &pieces).remove(0), &expected) <= 2e-4);
}
