//! `--task`, `--skill`, and listing what a file has of both.

use std::path::{Path, PathBuf};

use cortiq_cmf::{
    CmfFile, CmfWriter, Dtype, Mask, MaskCatalogue, MaskShape, Sections, SkillRecord, TensorPlan, WriteOptions,
};
use serde_json::{Value, json};

use crate::support::{Room, cortiq, floats, on};

const PROMPT: [&str; 2] = ["--ids", "3,1,4,1,5,9,2,6"];
const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

/// A mask with everything on, and one that keeps half of each layer but the first, which it skips.
fn masks(shape: MaskShape) -> MaskCatalogue {
    let mask = |id, name: &str, on: &dyn Fn(usize) -> bool, first: bool| {
        let mut mask = Mask::new(id, name, shape);
        for layer in 0..shape.num_layers {
            mask.set_layer(layer, layer > 0 || first);
            (0..shape.num_heads).filter(|i| on(*i)).for_each(|head| assert!(mask.set_head(layer, head, true)));
            (0..shape.intermediate_size).filter(|i| on(*i)).for_each(|n| assert!(mask.set_neuron(layer, n, true)));
        }
        mask
    };
    let masks = vec![mask(0, "all", &|_| true, true), mask(7, "half", &|i| i.is_multiple_of(2), false)];
    MaskCatalogue { default_task: "half".to_owned(), masks }
}

/// The model with masks and a skill that takes the FFN of layer 1 away.
fn dressed(room: &Room, model: &Path) -> PathBuf {
    let file = CmfFile::open(model).unwrap();
    let mut header = file.header().clone();
    header.skills.push(SkillRecord {
        id: "zero".to_owned(),
        name: Some("Nothing".to_owned()),
        layers: vec![1],
        selection: None,
        input_mask_task: Some("half".to_owned()),
        quality: Some(json!({"metric": "none"})),
    });
    let original = &file.tensors()[file.find(DOWN).unwrap()];
    let mut plan = file.plan();
    plan.push(TensorPlan { name: format!("skill.zero.{DOWN}"), dtype: Dtype::F32, shape: original.shape.clone() });
    let shape = MaskShape::from(&header.arch);
    let sections = Sections { masks: Some(masks(shape)), ..file.sections() };
    let path = room.path("dressed.cmf");
    let mut writer = CmfWriter::create(&path, header, plan, sections, WriteOptions::default()).unwrap();
    for i in 0..file.tensors().len() {
        writer.write_tensor(file.data(i).unwrap()).unwrap();
    }
    writer.write_tensor(&vec![0; 4 * original.element_count() as usize]).unwrap();
    writer.finish().unwrap();
    path
}

fn logits(model: &Path, flags: &[&str]) -> Value {
    on("logits", model, &[&PROMPT[..], flags].concat()).json()
}

#[test]
fn a_task_is_applied_when_asked_for() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let dressed = dressed(&room, &model);
    let whole = logits(&model, &[]);
    assert_eq!(logits(&dressed, &[]), whole);
    assert_eq!(logits(&dressed, &["--task", "all"]), whole);
    let half = logits(&dressed, &["--task", "half"]);
    assert_ne!(half, whole);
    let skilled = logits(&dressed, &["--task", "half", "--skill", "zero"]);
    assert!(skilled != half && skilled != logits(&dressed, &["--skill", "zero"]));
    let reference = logits(&dressed, &["--task", "half", "--executor", "reference"]);
    let [ours, theirs] = [&half, &reference].map(|logits| floats(&logits["logits"][0]));
    let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 2e-3, "{worst}");
    // Guesses change nothing, the mask does.
    let answer = |flags: &[&str]| {
        let flags = [&PROMPT[..], &["-n", "12", "--greedy", "--ignore-eos", "--json"], flags].concat();
        on("run", &dressed, &flags).json()["tokens"].clone()
    };
    let tokens = answer(&["--task", "half"]);
    let reference = ["--task", "half", "--executor", "reference"];
    assert_eq!(answer(&[&reference[..], &["--speculative", "ngram"]].concat()), answer(&reference));
    assert_ne!(answer(&[]), tokens);
}

#[test]
fn measuring_takes_a_task_too() {
    let room = Room::new();
    let dressed = dressed(&room, &room.model("qwen3", "q8"));
    let text = room.file("text.txt", "A small text, long enough to be scored by a small model.");
    let score = |flags: &[&str]| {
        let text = text.to_str().unwrap();
        on("ppl", &dressed, &[&["-f", text, "--window", "16", "--json"], flags].concat()).json()["perplexity"].clone()
    };
    assert_eq!(score(&["--task", "all"]), score(&[]));
    assert_ne!(score(&["--task", "half"]), score(&[]));

    let bench = |flags: &[&str]| on("bench", &dressed, &[&["-p", "4", "-n", "2", "-r", "1", "--json"], flags].concat());
    let report = bench(&["--task", "half", "--skill", "zero"]).json();
    assert_eq!(report["rows"].as_array().unwrap().len(), 2);
    bench(&["--task", "nothing"]).fails(&["`nothing`"]);
    let shape = ["bench", "--shape", "smollm2-135m", "--quant", "q8", "--task", "half"];
    cortiq(shape).misused(&["--task", "--shape"]);
}

#[test]
fn unknown_names_come_with_the_known_ones() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let dressed = dressed(&room, &model);
    let fails = |model: &Path, flags: &[&str], words: &[&str]| {
        on("run", model, &[&PROMPT[..], flags].concat()).fails(words);
    };
    fails(&dressed, &["--task", "juggling"], &["dressed.cmf", "no task mask `juggling`", "`all`, `half`"]);
    fails(&dressed, &["--skill", "juggling"], &["dressed.cmf", "no skill `juggling`", "`zero`"]);
    fails(&model, &["--task", "half"], &["no task mask `half`", "it has none"]);
}

#[test]
fn a_mask_that_does_not_fit_is_refused() {
    let room = Room::new();
    let file = CmfFile::open(&room.model("qwen3_moe", "q8")).unwrap();
    let path = room.path("experts.cmf");
    let masks = masks(MaskShape::from(&file.header().arch));
    let sections = Sections { masks: Some(masks), ..file.sections() };
    let mut writer =
        CmfWriter::create(&path, file.header().clone(), file.plan(), sections, WriteOptions::default()).unwrap();
    for i in 0..file.tensors().len() {
        writer.write_tensor(file.data(i).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    on("logits", &path, &[&PROMPT[..], &["--task", "half"]].concat()).fails(&[
        "experts.cmf",
        "`half`",
        "layer 1",
        "mixture of experts",
    ]);
    assert_eq!(logits(&path, &["--task", "all"]), logits(&path, &[]));
}

#[test]
fn skills_and_masks_are_listed() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let dressed = dressed(&room, &model);
    let list = |model: &Path, flags: &[&str]| cortiq([&["skill", "list", model.to_str().unwrap()], flags].concat());
    let report = list(&dressed, &["--json"]).json();
    let skill = &report["skills"][0];
    let info = on("info", &dressed, &["--json"]).json();
    let arch = &info["arch"];
    let count = arch["hidden_size"].as_u64().unwrap() * arch["intermediate_size"].as_u64().unwrap();
    assert_eq!(
        (&skill["id"], &skill["name"], &skill["input_mask_task"]),
        (&"zero".into(), &"Nothing".into(), &"half".into())
    );
    assert_eq!((&skill["tensors"], &skill["bytes"], &skill["layers"]), (&1.into(), &(4 * count).into(), &json!([1])));
    let replaced = &skill["replaces"][0];
    assert_eq!(
        (&replaced["name"], &replaced["dtype"], &replaced["base_dtype"]),
        (&DOWN.into(), &"f32".into(), &"q8_row".into())
    );
    // int8, and a scale of two bytes per row.
    assert_eq!(skill["base_bytes"], count + 2 * arch["hidden_size"].as_u64().unwrap());
    let people = list(&dressed, &[]).ok();
    assert!(["zero", "Nothing", "half"].iter().all(|word| people.stdout.contains(word)), "{people:?}");
    assert_eq!(list(&model, &["--json"]).json(), json!({"skills": []}));
    assert_eq!(list(&model, &[]).ok().stdout, "no skills\n");

    assert_eq!(
        (&info["masks"], &info["tasks"], &info["default_task"]),
        (&2.into(), &json!(["all", "half"]), &"half".into())
    );
    assert!(on("info", &dressed, &[]).ok().stdout.contains("all, half"));
    let masks = on("masks", &dressed, &["--json"]).json();
    assert_eq!(masks["masks"][1]["layers"]["active"], arch["num_layers"].as_u64().unwrap() - 1);
    assert!(on("masks", &dressed, &[]).ok().stdout.contains("half"));
    assert_eq!(on("verify", &dressed, &["--json"]).json()["ok"], true);
}
