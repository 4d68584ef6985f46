//! Models in several files, and models with skills.

use std::path::{Path, PathBuf};

use cortiq_cmf::{CmfFile, CmfWriter, Dtype, Header, Sections, ShardInfo, SkillRecord, TensorPlan, WriteOptions};

use crate::support::{Room, on};

const PROMPT: [&str; 2] = ["--ids", "3,1,4,1,5"];
const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

/// Writes some of a file's tensors, and others, under another header.
fn write(path: &Path, header: Header, file: &CmfFile, tensors: &[usize], more: &[(TensorPlan, Vec<u8>)], first: bool) {
    let mut plan: Vec<_> = tensors.iter().map(|&i| file.plan()[i].clone()).collect();
    plan.extend(more.iter().map(|(plan, _)| plan.clone()));
    let sections = if first { file.sections() } else { Sections::default() };
    let mut writer = CmfWriter::create(path, header, plan, sections, WriteOptions::default()).unwrap();
    for &i in tensors {
        writer.write_tensor(file.data(i).unwrap()).unwrap();
    }
    for (_, payload) in more {
        writer.write_tensor(payload).unwrap();
    }
    writer.finish().unwrap();
}

/// The shards of a model cut in two.
fn shards(room: &Room, model: &Path) -> [PathBuf; 2] {
    let file = CmfFile::open(model).unwrap();
    let count = file.tensors().len();
    [(1, 0..count / 2), (2, count / 2..count)].map(|(no, range)| {
        let path = room.path(&format!("m-{no:05}-of-00002.cmf"));
        let mut header = file.header().clone();
        header.shard = Some(ShardInfo { no, count: 2 });
        // The sections are in the first shard only.
        header.section_hashes = None;
        write(&path, header, &file, &range.collect::<Vec<_>>(), &[], no == 1);
        path
    })
}

#[test]
fn shards_are_one_model() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let [first, second] = shards(&room, &model);
    let logits = |path: &Path, flags: &[&str]| on("logits", path, &[&PROMPT[..], flags].concat()).json();
    let whole = logits(&model, &[]);
    assert_eq!(logits(&first, &[]), whole);
    assert_eq!(logits(&second, &["--owned"]), whole);
    let info = on("info", &first, &["--json"]).json();
    assert_eq!(info["shards"], 2);
    assert_eq!(info["dtypes"], on("info", &model, &["--json"]).json()["dtypes"]);
    assert_eq!(on("verify", &second, &["--json"]).json()["ok"], true);

    std::fs::remove_file(&second).unwrap();
    on("run", &first, &PROMPT).fails(&["m-00002-of-00002.cmf"]);
}

#[test]
fn a_skill_replaces_tensors_when_asked_for() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let file = CmfFile::open(&model).unwrap();
    let mut header = file.header().clone();
    header.skills.push(SkillRecord {
        id: "zero".to_owned(),
        name: Some("Nothing".to_owned()),
        layers: vec![1],
        selection: None,
        input_mask_task: None,
        quality: None,
    });
    let original = &file.tensors()[file.find(DOWN).unwrap()];
    let plan = TensorPlan { name: format!("skill.zero.{DOWN}"), dtype: Dtype::F32, shape: original.shape.clone() };
    let zeros = vec![0; 4 * original.element_count() as usize];
    let skilled = room.path("skilled.cmf");
    let all: Vec<usize> = (0..file.tensors().len()).collect();
    write(&skilled, header, &file, &all, &[(plan, zeros)], true);

    let logits = |path: &Path, flags: &[&str]| on("logits", path, &[&PROMPT[..], flags].concat()).json();
    assert_eq!(logits(&skilled, &[]), logits(&model, &[]));
    assert_ne!(logits(&skilled, &["--skill", "zero"]), logits(&model, &[]));
    let info = on("info", &skilled, &["--json"]).json();
    assert_eq!((&info["skills"][0]["id"], &info["skills"][0]["tensors"]), (&"zero".into(), &1.into()));
    assert_eq!(info["sizes"]["parameters"], on("info", &model, &["--json"]).json()["sizes"]["parameters"]);
    assert!(on("info", &skilled, &[]).ok().stdout.contains("zero (Nothing): 1 tensors"));
}
