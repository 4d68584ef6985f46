//! Task masks and skills (docs/behaviour.md §8). A masked run equals the plain run of another file, in which the rows
//! that read a head or neuron are zero and the layers that are off were never there; a skill's run equals that of a
//! file with its tensors in the place of the originals.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cortiq_cmf::{
    CmfFile, CmfWriter, Dtype, Header, Mask, MaskCatalogue, MaskShape, Sections, SkillRecord, TensorPlan, WriteOptions,
};
use cortiq_conformance::{convert_fixture, divergence, max_abs_diff, random_model};
use cortiq_engine::{DraftKind, Engine, EngineError, EngineOptions, ExecutorKind, GenerateOptions, SamplingParams};
use cortiq_engine::{Generation, Speculation};
use cortiq_model::{NamedShape, Weights, tensors_of};
use cortiq_quant::{Encoding, encode};

const TASK: &str = "half";

/// A model that can be changed before it is written.
#[derive(Clone)]
struct Content {
    header: Header,
    tensors: Vec<(TensorPlan, Vec<u8>)>,
}

impl Content {
    fn read(path: &Path) -> Self {
        let file = CmfFile::open(path).unwrap();
        let payloads = (0..file.tensors().len()).map(|i| file.data(i).unwrap().to_vec());
        Self { header: file.header().clone(), tensors: file.plan().into_iter().zip(payloads).collect() }
    }

    fn fixture(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::read(&convert_fixture(name, Encoding::F32, folder.path()))
    }

    /// Random weights; every layer is the same.
    fn random(dtype: Dtype) -> Self {
        let shape = NamedShape {
            name: "masked",
            num_layers: 3,
            hidden_size: 64,
            heads: 6,
            kv_heads: 2,
            head_dim: 16,
            intermediate_size: 96,
            vocab_size: 101,
            tied: false,
            qk_norm: true,
            rope_theta: 1e4,
            experts: None,
            delta: None,
        };
        let model = random_model(&shape, dtype, 11);
        let tensor = |(name, _): (String, Vec<usize>)| {
            let id = model.weights.find(&name).unwrap();
            let (dtype, shape) = (model.weights.dtype(id).unwrap(), model.weights.shape(id).unwrap().to_vec());
            (TensorPlan { name, dtype, shape }, model.weights.bytes(id).unwrap().to_vec())
        };
        Self { tensors: tensors_of(&shape).into_iter().map(tensor).collect(), header: model.header }
    }

    fn write(&self, path: &Path, masks: Option<MaskCatalogue>) {
        let plan = self.tensors.iter().map(|(plan, _)| plan.clone()).collect();
        let sections = Sections { masks, vocab: None };
        let mut header = self.header.clone();
        header.section_hashes = None;
        let options = WriteOptions { digests: false, overwrite: true };
        let mut writer = CmfWriter::create(path, header, plan, sections, options).unwrap();
        for (_, payload) in &self.tensors {
            writer.write_tensor(payload).unwrap();
        }
        writer.finish().unwrap();
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|(plan, _)| plan.name == name)
    }

    fn tensor(&mut self, name: &str) -> &mut (TensorPlan, Vec<u8>) {
        self.tensors.iter_mut().find(|(plan, _)| plan.name == name).unwrap()
    }

    /// Sets columns of an f32 matrix to 0, each `wide` values wide.
    fn zero_columns(&mut self, name: &str, count: usize, off: impl Fn(usize) -> bool) {
        let (plan, payload) = self.tensor(name);
        assert_eq!(plan.dtype, Dtype::F32, "{name}");
        let columns = plan.shape[1] as usize;
        let wide = columns / count;
        assert_eq!(count * wide, columns, "{name}");
        for row in payload.chunks_exact_mut(4 * columns) {
            for (_, part) in row.chunks_exact_mut(4 * wide).enumerate().filter(|(i, _)| off(*i)) {
                part.fill(0);
            }
        }
    }

    /// The same model as if these layers had never been there.
    fn without_layers(&mut self, off: &[usize]) {
        let arch = &mut self.header.arch;
        let count = arch.num_layers;
        if arch.sliding_window.is_some() && arch.sliding_layers.is_none() {
            // The rule counts layers, so it is written out before they move.
            let slides = |i: usize| arch.sliding_window_pattern.is_none_or(|pattern| !(i + 1).is_multiple_of(pattern));
            arch.sliding_layers = Some((0..count).map(slides).collect());
            arch.sliding_window_pattern = None;
        }
        arch.num_layers -= off.len();
        arch.layer_types = kept(&arch.layer_types, off);
        arch.sliding_layers = arch.sliding_layers.as_ref().map(|layers| kept(layers, off));
        arch.rope_layers = arch.rope_layers.as_ref().map(|layers| kept(layers, off));
        self.header.extensions = self.header.implied_extensions().into_iter().map(str::to_owned).collect();
        let mut tensors = Vec::new();
        for (mut plan, payload) in self.tensors.drain(..) {
            let place = plan.name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
            if let Some((index, rest)) = place {
                let index: usize = index.parse().unwrap();
                if off.contains(&index) {
                    continue;
                }
                let before = off.iter().filter(|o| **o < index).count();
                plan.name = format!("model.layers.{}.{rest}", index - before);
            }
            tensors.push((plan, payload));
        }
        self.tensors = tensors;
    }

    /// A mask that leaves layers, heads and neurons out wherever the model has them.
    fn mask(&self, off: &[usize]) -> Mask {
        let shape = MaskShape::from(&self.header.arch);
        let mut mask = Mask::new(4, TASK, shape);
        for layer in 0..shape.num_layers {
            mask.set_layer(layer, !off.contains(&layer));
            let has = |name: &str| self.has(&format!("model.layers.{layer}.{name}.weight"));
            let (attends, dense) = (has("self_attn.o_proj"), has("mlp.down_proj"));
            for head in 0..shape.num_heads {
                mask.set_head(layer, head, !attends || head_on(layer, head));
            }
            for neuron in 0..shape.intermediate_size {
                mask.set_neuron(layer, neuron, !dense || neuron_on(layer, neuron));
            }
        }
        mask
    }

    /// What [`Content::mask`] leaves, as a model without a mask.
    fn pruned(mut self, off: &[usize]) -> Self {
        let MaskShape { num_layers, intermediate_size, num_heads } = MaskShape::from(&self.header.arch);
        for layer in 0..num_layers {
            let o_proj = format!("model.layers.{layer}.self_attn.o_proj.weight");
            if self.has(&o_proj) {
                self.zero_columns(&o_proj, num_heads, |head| !head_on(layer, head));
            }
            let down_proj = format!("model.layers.{layer}.mlp.down_proj.weight");
            if self.has(&down_proj) {
                self.zero_columns(&down_proj, intermediate_size, |neuron| !neuron_on(layer, neuron));
            }
        }
        self.without_layers(off);
        self
    }
}

fn kept<T: Clone>(list: &[T], off: &[usize]) -> Vec<T> {
    list.iter().enumerate().filter(|(i, _)| !off.contains(i)).map(|(_, x)| x.clone()).collect()
}

fn head_on(layer: usize, head: usize) -> bool {
    !(head + layer).is_multiple_of(3)
}

fn neuron_on(layer: usize, neuron: usize) -> bool {
    (neuron * 7 + layer) % 5 < 3
}

fn catalogue(masks: Vec<Mask>) -> Option<MaskCatalogue> {
    Some(MaskCatalogue { default_task: TASK.to_owned(), masks })
}

/// Files of one test.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: &Content, masks: Option<MaskCatalogue>) -> PathBuf {
        let path = self.0.path().join(name);
        content.write(&path, masks);
        path
    }
}

fn engine(path: &Path, executor: ExecutorKind, task: Option<&str>) -> Result<Engine, EngineError> {
    let file = Arc::new(CmfFile::open_owned(path).unwrap());
    let options = EngineOptions { executor, task: task.map(str::to_owned), ..EngineOptions::default() };
    Engine::from_file(file, &options)
}

/// Logits of every position of a prompt.
fn logits(path: &Path, executor: ExecutorKind, task: Option<&str>) -> Vec<Vec<f32>> {
    let mut engine = engine(path, executor, task).unwrap();
    let vocab = engine.vocab_size() as u32;
    let ids: Vec<u32> = (0..45).map(|i| (i * 37 + 11) % vocab).collect();
    engine.logits(&ids, true).unwrap()
}

fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| max_abs_diff(a, b)).fold(0.0, f32::max)
}

/// Compares the masked run of `content` with the plain one of what the mask leaves, on both executors.
fn compare(what: &str, content: &Content, off: &[usize]) {
    let room = Room::new();
    let masked = room.file("masked.cmf", content, catalogue(vec![content.mask(off)]));
    let pruned = room.file("pruned.cmf", &content.clone().pruned(off), None);
    let reference = logits(&masked, ExecutorKind::Reference, Some(TASK));
    let oracle = logits(&pruned, ExecutorKind::Reference, None);
    assert!(distance(&reference, &oracle) <= 1e-6, "{what} {off:?}: {}", distance(&reference, &oracle));
    let whole = logits(&masked, ExecutorKind::Reference, None);
    assert!(distance(&reference, &whole) > 1e-2, "{what} {off:?}: the mask changes nothing");
    let cpu = logits(&masked, ExecutorKind::Cpu, Some(TASK));
    assert!(distance(&cpu, &oracle) <= 2e-3, "{what} {off:?}: cpu {}", distance(&cpu, &oracle));
    let oracle = logits(&pruned, ExecutorKind::Cpu, None);
    assert!(distance(&cpu, &oracle) <= 1e-6, "{what} {off:?}: cpu alone {}", distance(&cpu, &oracle));
}

#[test]
fn a_masked_run_equals_a_pruned_model() {
    let content = Content::random(Dtype::F32);
    for off in [&[][..], &[0], &[1, 2]] {
        compare("random", &content, off);
    }
}

#[test]
fn every_kind_of_layer_can_be_masked_or_skipped() {
    // Biases, windows and sandwich norms, post-norms, gates and delta nets, short convolutions, latent attention with
    // dense layers and experts, experts, layers without positions.
    let models: [(&str, &[usize]); 8] = [
        ("qwen2_bias", &[1]),
        ("gemma2", &[0]),
        ("olmo2", &[2]),
        ("qwen3_5", &[1]),
        ("lfm2", &[0, 2]),
        ("deepseek_v3", &[1]),
        ("qwen3_moe", &[1]),
        ("smollm3", &[1]),
    ];
    for (name, off) in models {
        let content = Content::fixture(name);
        compare(name, &content, &[]);
        compare(name, &content, off);
    }
}

#[test]
fn quantised_masked_models_agree_between_executors() {
    for dtype in [Dtype::Q8_2f, Dtype::Q4Tiled, Dtype::Q1] {
        let content = Content::random(dtype);
        let room = Room::new();
        let masked = room.file("masked.cmf", &content, catalogue(vec![content.mask(&[1])]));
        let reference = logits(&masked, ExecutorKind::Reference, Some(TASK));
        let cpu = logits(&masked, ExecutorKind::Cpu, Some(TASK));
        let rows: Vec<_> = reference.iter().zip(&cpu).map(|(a, b)| divergence(a, b)).collect();
        let mean_kl = rows.iter().map(|d| d.kl).sum::<f64>() / rows.len() as f64;
        assert!(mean_kl <= 2e-3 && rows.iter().all(|d| d.cosine >= 0.999), "{dtype}: {mean_kl}");
    }
}

#[test]
fn masks_do_nothing_until_they_are_asked_for() {
    let content = Content::random(Dtype::F32);
    let room = Room::new();
    let mut open = Mask::new(1, "open", MaskShape::from(&content.header.arch));
    for layer in 0..3 {
        open.set_layer(layer, true);
        (0..6).for_each(|head| assert!(open.set_head(layer, head, true)));
        (0..96).for_each(|neuron| assert!(open.set_neuron(layer, neuron, true)));
    }
    let plain = room.file("plain.cmf", &content, None);
    // Even the default task and a fallback wait to be named.
    let masked = room.file("masked.cmf", &content, catalogue(vec![content.mask(&[1]), open]));
    for executor in [ExecutorKind::Reference, ExecutorKind::Cpu] {
        let expected = logits(&plain, executor, None);
        assert!(logits(&masked, executor, None) == expected);
        assert!(logits(&masked, executor, Some("open")) == expected);
    }
}

#[test]
fn a_model_without_layers_sees_one_token() {
    let content = Content::random(Dtype::F32);
    let room = Room::new();
    let path = room.file("none.cmf", &content, catalogue(vec![content.mask(&[0, 1, 2])]));
    for executor in [ExecutorKind::Reference, ExecutorKind::Cpu] {
        let mut engine = engine(&path, executor, Some(TASK)).unwrap();
        let alone = engine.logits(&[7], false).unwrap();
        assert!(alone[0].iter().any(|logit| *logit != 0.0));
        assert_eq!(engine.logits(&[3, 9, 7], false).unwrap(), alone);
    }
}

#[test]
fn guesses_do_not_change_a_masked_answer() {
    let content = Content::fixture("qwen3_next");
    let room = Room::new();
    let path = room.file("masked.cmf", &content, catalogue(vec![content.mask(&[1])]));
    let mut engine = engine(&path, ExecutorKind::Reference, Some(TASK)).unwrap();
    engine.set_always_speculate(true);
    let mut answer = |speculative: Speculation| -> Generation {
        let options = GenerateOptions {
            max_tokens: 24,
            sampling: SamplingParams::greedy(),
            stop: Vec::new(),
            ignore_eos: true,
            speculative,
        };
        let mut sequence = engine.sequence().unwrap();
        let answer = engine.generate(&mut sequence, &[5, 9, 300, 2, 77], &options, &mut |_| ControlFlow::Continue(()));
        engine.close(sequence).unwrap();
        answer.unwrap()
    };
    let plain = answer(Speculation::Off);
    for kind in [DraftKind::Mtp, DraftKind::NGram] {
        let guessed = answer(Speculation::of_kind(kind, Some(2)));
        assert_eq!(guessed.tokens, plain.tokens, "{kind:?}");
        assert!(guessed.drafted > 0 || kind == DraftKind::NGram);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let content = Content::random(Dtype::F32);
    let room = Room::new();
    let failure = |path: &Path, task: &str| {
        [ExecutorKind::Reference, ExecutorKind::Cpu]
            .map(|executor| engine(path, executor, Some(task)).map(|_| ()).unwrap_err().to_string())
    };
    let check = |path: &Path, task: &str, words: &[&str]| {
        for error in failure(path, task) {
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
    };
    let mut other = content.mask(&[]);
    other.name = "other".to_owned();
    let two = room.file("two.cmf", &content, catalogue(vec![content.mask(&[1]), other]));
    check(&two, "third", &["`third`", "`half`, `other`"]);
    let none = room.file("none.cmf", &content, None);
    check(&none, TASK, &["`half`", "it has none"]);

    // A layer with fewer neurons than the header says.
    let mut narrow = content.clone();
    for (name, shape) in [("gate_proj", [80, 64]), ("up_proj", [80, 64]), ("down_proj", [64, 80])] {
        let (plan, payload) = narrow.tensor(&format!("model.layers.1.mlp.{name}.weight"));
        plan.shape = shape.to_vec();
        payload.truncate(4 * 80 * 64);
    }
    let path = room.file("narrow.cmf", &narrow, catalogue(vec![content.mask(&[]), skipping(&content)]));
    check(&path, TASK, &["`half`", "layer 1", "96 FFN neurons", "80"]);
    // A mask that skips that layer says nothing about its neurons.
    engine(&path, ExecutorKind::Cpu, Some("skip")).unwrap();

    let experts = Content::fixture("qwen3_moe");
    let mut mask = experts.mask(&[]);
    assert!(mask.set_neuron(1, 3, false));
    let path = room.file("experts.cmf", &experts, catalogue(vec![mask]));
    check(&path, TASK, &["`half`", "layer 1", "mixture of experts"]);

    let hybrid = Content::fixture("qwen3_5");
    let mut mask = hybrid.mask(&[]);
    assert!(mask.set_head(2, 0, false));
    let path = room.file("hybrid.cmf", &hybrid, catalogue(vec![mask]));
    check(&path, TASK, &["`half`", "layer 2", "gated delta net"]);
}

/// A mask of a name of its own that skips layer 1.
fn skipping(content: &Content) -> Mask {
    let mut mask = content.mask(&[1]);
    mask.name = "skip".to_owned();
    mask
}

/// Other values for some tensors: one in the same dtype, one in another.
fn replacements(content: &Content) -> Vec<(TensorPlan, Vec<u8>)> {
    let up = "model.layers.0.mlp.up_proj.weight";
    let query = "model.layers.2.self_attn.q_proj.weight";
    let values = |n: usize| (0..n).map(|i| ((i * 29 + 7) % 23) as f32 / 40.0 - 0.25).collect::<Vec<f32>>();
    [(up, Encoding::F32), (query, Encoding::Q8Row)]
        .map(|(name, encoding)| {
            let (plan, _) = content.tensors.iter().find(|(plan, _)| plan.name == name).unwrap();
            let (rows, cols) = (plan.shape[0] as usize, plan.shape[1] as usize);
            let payload = encode(&encoding, &values(rows * cols), rows, cols).unwrap();
            (TensorPlan { dtype: encoding.dtype(), ..plan.clone() }, payload)
        })
        .to_vec()
}

#[test]
fn a_skill_equals_a_model_with_its_tensors() {
    let content = Content::random(Dtype::F32);
    let (mut skilled, mut replaced) = (content.clone(), content.clone());
    let record = |id: &str| SkillRecord {
        id: id.to_owned(),
        name: None,
        layers: vec![0, 2],
        selection: None,
        input_mask_task: Some(TASK.to_owned()),
        quality: None,
    };
    skilled.header.skills = vec![record("poems"), record("proofs")];
    for (plan, payload) in replacements(&content) {
        *replaced.tensor(&plan.name) = (plan.clone(), payload.clone());
        skilled.tensors.push((TensorPlan { name: format!("skill.poems.{}", plan.name), ..plan }, payload));
    }
    let room = Room::new();
    let masks = || catalogue(vec![content.mask(&[1])]);
    let skilled = room.file("skilled.cmf", &skilled, masks());
    let replaced = room.file("replaced.cmf", &replaced, masks());
    let plain = room.file("plain.cmf", &content, None);
    for executor in [ExecutorKind::Reference, ExecutorKind::Cpu] {
        let run = |skill: Option<&str>, task: Option<&str>| {
            let (skill, task) = (skill.map(str::to_owned), task.map(str::to_owned));
            let options = EngineOptions { executor, skill, task, ..EngineOptions::default() };
            let ids: Vec<u32> = (0..45).map(|i| (i * 37 + 11) % 101).collect();
            Engine::open(&skilled, &options).unwrap().logits(&ids, true).unwrap()
        };
        assert!(run(None, None) == logits(&plain, executor, None));
        // A skill's own task is a note of its maker: no mask without `task`.
        assert!(run(Some("poems"), None) == logits(&replaced, executor, None));
        assert!(run(Some("poems"), Some(TASK)) == logits(&replaced, executor, Some(TASK)));
        // Registered, without tensors.
        assert!(run(Some("proofs"), None) == logits(&plain, executor, None));
    }
    let options = EngineOptions { skill: Some("songs".to_owned()), ..EngineOptions::default() };
    let error = Engine::open(&skilled, &options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("`songs`") && error.contains("`poems`, `proofs`"), "{error}");
}
