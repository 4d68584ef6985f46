//! Every shader that the gpu executor assembles, for devices with and without subgroups and matrix units, translates to
//! SPIR-V, MSL and HLSL; those on matrix units to what their interfaces take. No shader file is left unused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cortiq_cmf::Dtype;
use cortiq_conformance::{Model, Piece, WIDE, alone, convert_fixture, golden, open_model, random_model, step};
use cortiq_gpu::lab::{Kernel, Lab, ProductCase};
use cortiq_gpu::{AdapterSummary, Caps, CoopShape, Gpu, GpuExecutor, GpuOptions, Precision};
use cortiq_model::{
    Batch, DraftInput, DraftSource, Executor, ModelError, Op, Program, Span, StateLimits, TensorId, TopRows, VectorId,
    Weights,
};
use cortiq_quant::{Encoding, MatrixView, Q1tOptions, decode, encode};
use naga::valid::{Capabilities, ValidationFlags, Validator};

const LIMITS: StateLimits = StateLimits { max_positions: 1024, max_bytes: 1 << 30 };

/// Models that have every operation among them.
const MODELS: [&str; 12] = [
    "qwen3",
    "llama_tied_bias",
    "gemma2",
    "gemma3_text",
    "gemma4",
    "olmo2",
    "mistral_swa",
    "mixtral",
    "qwen2_moe",
    "deepseek_v3",
    "qwen3_next",
    "lfm2_moe",
];

fn encodings() -> [Encoding; 10] {
    [
        Encoding::Q8Row,
        Encoding::Q4Block,
        Encoding::F16,
        Encoding::Q1t(Q1tOptions::default()),
        Encoding::Q1,
        Encoding::Vbit { mean_milli_bits: 5000 },
        Encoding::F32,
        Encoding::Q1s { keep: 0.02 },
        Encoding::Bf16,
        Encoding::Q8_2f,
    ]
}

/// Kinds of devices.
fn devices() -> [Caps; 4] {
    let device = |subgroup: Option<u32>, coop: Option<u32>| Caps {
        adapter: AdapterSummary {
            name: "pretended".to_owned(),
            backend: "none".to_owned(),
            driver: String::new(),
            software: false,
            discrete: true,
        },
        subgroup,
        f16: coop.is_some(),
        coop: coop.map(|size| CoopShape { size }),
        timestamps: false,
        max_threads: 1024,
        max_binding: 1 << 30,
        max_buffer: 1 << 30,
        workgroup_memory: if coop.is_some() { 48 << 10 } else { 32 << 10 },
    };
    [device(None, None), device(Some(32), None), device(Some(32), Some(16)), device(Some(32), Some(8))]
}

/// What a device assembles for the models, all classes of batch size and both precisions.
fn model_shaders(gpu: &Arc<Gpu>, shift: usize, found: &mut BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    let encodings = encodings();
    for (i, name) in MODELS.iter().enumerate() {
        let encoding = encodings[(i + shift) % encodings.len()].clone();
        let model = open_model(&convert_fixture(name, encoding, folder.path()));
        let tokens: Vec<u32> = golden(name).sequences.iter().flat_map(|s| s.input_ids.clone()).take(40).collect();
        for precision in [Precision::Exact, Precision::Fast] {
            let options = GpuOptions::new(LIMITS).with_precision(precision);
            let weights = Arc::clone(&model.weights);
            let mut executor = GpuExecutor::new(Arc::clone(gpu), model.program(), weights, options).unwrap();
            drive(&mut executor, &tokens, found);
        }
    }
}

/// Feeds steps of all classes, and drafts where the model can.
fn drive(executor: &mut GpuExecutor, tokens: &[u32], found: &mut BTreeSet<String>) {
    for count in [1, 4, 40] {
        alone(executor, &tokens[..count], count);
    }
    for count in [1, 64] {
        let sequence = executor.states().open().unwrap();
        let spans = [Span { sequence, start: 0, len: 1, known_len: 0 }];
        let batch = Batch { tokens: &tokens[..1], spans: &spans, logit_rows: &[0] };
        executor.step_top(&batch, count, &mut TopRows::default()).unwrap();
    }
    if executor.program().draft.is_some() {
        let sequence = executor.states().open().unwrap();
        let piece = Piece { sequence, start: 0, tokens: &tokens[..4], known_len: 4 };
        step(executor, &[piece]);
        let input = DraftInput { source: DraftSource::Step, rows: &[3], next: &tokens[..1], logit_rows: &[0] };
        executor.draft(&input).unwrap();
    }
    found.extend(executor.shader_texts());
}

/// Payloads of matrices by number.
struct Payloads(Vec<(Dtype, Vec<u32>, Vec<u8>)>);

impl Weights for Payloads {
    fn find(&self, _: &str) -> Option<TensorId> {
        None
    }

    fn dtype(&self, id: TensorId) -> Result<Dtype, ModelError> {
        Ok(self.0[id.0].0)
    }

    fn shape(&self, id: TensorId) -> Result<&[u32], ModelError> {
        Ok(&self.0[id.0].1)
    }

    fn bytes(&self, id: TensorId) -> Result<&[u8], ModelError> {
        Ok(&self.0[id.0].2)
    }
}

/// Storage that no converter chooses, so that every kernel meets every layout: overlays in embeddings and in what
/// latent attention absorbs, experts that differ.
fn unusual_encoding(name: &str, index: usize) -> Encoding {
    if name.contains("embed_tokens") || name.contains("kv_b_proj") {
        return Encoding::Q1s { keep: 0.02 };
    }
    if index.is_multiple_of(2) { Encoding::Q4Block } else { Encoding::Q8Row }
}

/// A model in unusual storage and with masks whose heads and neurons are all on.
fn unusual(model: &Model) -> (Program, Payloads) {
    let (mut program, mut payloads) = (model.program(), Payloads(Vec::new()));
    for (index, decl) in program.matrices.iter_mut().enumerate() {
        let values = decode(decl.dtype, model.weights.bytes(decl.tensor).unwrap(), decl.rows, decl.cols).unwrap();
        let wanted = unusual_encoding(&decl.name, index);
        let encoding = if wanted.accepts(decl.rows, decl.cols) { wanted } else { Encoding::Q8Row };
        let payload = encode(&encoding, &values, decl.rows, decl.cols).unwrap();
        payloads.0.push((encoding.dtype(), vec![decl.rows as u32, decl.cols as u32], payload));
        (decl.dtype, decl.tensor) = (encoding.dtype(), TensorId(index));
    }
    for op in &mut program.ops {
        let mask = VectorId(program.vectors.len());
        match op {
            Op::Attention(op) => {
                op.head_mask = Some(mask);
                program.vectors.push(vec![1.0; op.heads]);
            }
            Op::GatedFfn(op) => {
                op.neuron_mask = Some(mask);
                program.vectors.push(vec![1.0; program.matrices[op.gate.weight.0].rows]);
            }
            _ => {}
        }
    }
    (program, payloads)
}

/// What a device assembles for models in unusual storage.
fn unusual_shaders(gpu: &Arc<Gpu>, found: &mut BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["qwen3", "deepseek_v3", "qwen3_moe"] {
        let model = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
        for precision in [Precision::Exact, Precision::Fast] {
            let (program, payloads) = unusual(&model);
            let options = GpuOptions::new(LIMITS).with_precision(precision);
            let mut executor = GpuExecutor::new(Arc::clone(gpu), program, Arc::new(payloads), options).unwrap();
            drive(&mut executor, &[1; 40], found);
        }
    }
}

/// What a device assembles for gated delta nets that no fixture has: other floats beside int8 projections, two taps.
fn delta_shaders(gpu: &Arc<Gpu>, found: &mut BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture("qwen3_5", Encoding::Q8Row, folder.path()));
    for floats in [Encoding::F32, Encoding::F16] {
        let (mut program, mut payloads) = (model.program(), Payloads(Vec::new()));
        for (index, decl) in program.matrices.iter_mut().enumerate() {
            let mut payload = model.weights.bytes(decl.tensor).unwrap().to_vec();
            if decl.name.contains("in_proj_a") || decl.name.contains("in_proj_b") {
                let values = decode(decl.dtype, &payload, decl.rows, decl.cols).unwrap();
                payload = encode(&floats, &values, decl.rows, decl.cols).unwrap();
                decl.dtype = floats.dtype();
            }
            payloads.0.push((decl.dtype, vec![decl.rows as u32, decl.cols as u32], payload));
            decl.tensor = TensorId(index);
        }
        for op in &mut program.ops {
            if let Op::GatedDelta(op) = op {
                op.conv_kernel = 2;
                program.vectors[op.conv.0].truncate(2 * op.channels());
            }
        }
        let mut executor =
            GpuExecutor::new(Arc::clone(gpu), program, Arc::new(payloads), GpuOptions::new(LIMITS)).unwrap();
        drive(&mut executor, &[1; 40], found);
    }
}

/// What a device assembles for products: every kernel, layout and number of outputs.
fn product_shaders(gpu: &Arc<Gpu>, found: &mut BTreeSet<String>) {
    let mut lab = Lab::new(Arc::clone(gpu));
    for encoding in encodings() {
        for parts in 1..=4usize {
            let payload = encode(&encoding, &[0.5; 40 * 64], 40, 64).unwrap();
            let view = MatrixView::new(encoding.dtype(), &payload, 40, 64).unwrap();
            let matrices = lab.upload(&vec![&view; parts]).unwrap();
            let mut kernels: Vec<Kernel> = lab.gemm_variants(&matrices).into_iter().map(Kernel::Gemm).collect();
            kernels.extend(match matrices.takes_int8() {
                true => vec![Kernel::MatvecInt8, Kernel::MatvecTwoCodes],
                false => vec![Kernel::Matvec],
            });
            for kernel in kernels {
                let bias = vec![1.0; parts * 40];
                let bias = (parts % 2 == 0).then_some(bias.as_slice());
                let case = ProductCase { kernel, x: &[0.5; 5 * 64], tokens: 5, bias, add: parts > 2 };
                lab.product(&matrices, &case).unwrap();
            }
        }
    }
    found.extend(lab.shader_texts());
}

/// What a device assembles for wide rows of signs.
fn wide_shaders(gpu: &Arc<Gpu>, found: &mut BTreeSet<String>) {
    let random = random_model(&WIDE, Dtype::Q1, 5);
    let model = Model { header: random.header, weights: random.weights };
    let options = GpuOptions::new(LIMITS);
    let weights = Arc::clone(&model.weights);
    let mut executor = GpuExecutor::new(Arc::clone(gpu), model.program(), weights, options).unwrap();
    drive(&mut executor, &[1; 40], found);
}

/// Features of the language that a shader may use.
fn capabilities(text: &str) -> Capabilities {
    // f16 pairs in words, which every interface has.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if text.contains("subgroup") {
        capabilities |= Capabilities::SUBGROUP;
    }
    if text.contains("enable f16;") {
        capabilities |= Capabilities::SHADER_FLOAT16;
    }
    if text.contains("enable wgpu_cooperative_matrix;") {
        capabilities |= Capabilities::COOPERATIVE_MATRIX;
    }
    capabilities
}

/// First line of a shader's own part and its number among the shaders, for messages.
fn describe(text: &str) -> String {
    let own = text.rfind("\n//").map_or(text, |at| &text[at..]);
    own.trim().lines().next().unwrap_or_default().to_owned()
}

fn translate(text: &str) {
    let what = describe(text);
    let module =
        naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{what}: {}", error.emit_to_string(text)));
    let mut validator = Validator::new(ValidationFlags::all(), capabilities(text));
    let info = validator.validate(&module).unwrap_or_else(|error| panic!("{what}: {}", error.emit_to_string(text)));
    let matrix_units = text.contains("enable wgpu_cooperative_matrix;");
    let spirv = naga::back::spv::Options { lang_version: (1, 5), ..Default::default() };
    let words = naga::back::spv::write_vec(&module, &info, &spirv, None);
    assert!(!words.unwrap_or_else(|error| panic!("{what}: SPIR-V: {error}")).is_empty());
    // Metal has matrices of 8 by 8 only, DX12 none.
    if !matrix_units || text.contains("coop_mat8x8") {
        let msl = naga::back::msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..Default::default() };
        let done = naga::back::msl::write_string(&module, &info, &msl, &Default::default());
        let (code, _) = done.unwrap_or_else(|error| panic!("{what}: MSL: {error}"));
        assert!(code.contains("kernel void"), "{what}: MSL without a kernel");
    }
    if !matrix_units {
        let hlsl = naga::back::hlsl::Options {
            shader_model: naga::back::hlsl::ShaderModel::V6_4,
            fake_missing_bindings: true,
            ..Default::default()
        };
        let (mut code, pipeline) = (String::new(), naga::back::hlsl::PipelineOptions::default());
        let done = naga::back::hlsl::Writer::new(&mut code, &hlsl, &pipeline).write(&module, &info, None);
        done.unwrap_or_else(|error| panic!("{what}: HLSL: {error}"));
        assert!(code.contains("numthreads"), "{what}: HLSL without a kernel");
    }
}

/// All `.wgsl` files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else if path.extension().is_some_and(|extension| extension == "wgsl") {
                vec![path]
            } else {
                vec![]
            }
        })
        .collect()
}

#[test]
fn every_shader_translates_and_every_file_is_used() {
    let mut found = BTreeSet::new();
    for (shift, caps) in devices().into_iter().enumerate() {
        let gpu = Arc::new(Gpu::pretend(caps).unwrap());
        model_shaders(&gpu, 3 * shift, &mut found);
        unusual_shaders(&gpu, &mut found);
        delta_shaders(&gpu, &mut found);
        product_shaders(&gpu, &mut found);
        wide_shaders(&gpu, &mut found);
    }
    // Assembled by `read_bandwidth` alone.
    let read = include_str!("../../gpu/shaders/read.wgsl");
    found.insert(format!("const PER_THREAD: u32 = 4u;\nconst THREADS: u32 = 1024u;\n{read}"));
    println!("{} shaders", found.len());
    found.iter().for_each(|text| translate(text));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/shaders");
    let unused: Vec<PathBuf> = files(&folder)
        .into_iter()
        .filter(|path| {
            let own = std::fs::read_to_string(path).unwrap();
            !found.iter().any(|text| text.contains(own.trim_end()))
        })
        .collect();
    assert!(unused.is_empty(), "no device and no model uses {unused:?}");
}
