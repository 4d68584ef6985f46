//! Fixtures converted from beginning to end.

use std::collections::BTreeSet;
use std::sync::Arc;

use cortiq_cmf::{CmfFile, Dtype};
use cortiq_model::{MappedWeights, Program};
use cortiq_quant::Encoding;

use super::*;
use crate::{ConvertOptions, NoProgress, Policy, convert};

/// Every model fixture and its family; `None` while the family is not supported.
pub(super) const FIXTURES: [(&str, Option<&str>); 29] = [
    ("deepseek_v3", Some("deepseek_v3")),
    ("gemma", Some("gemma")),
    ("gemma2", Some("gemma2")),
    ("gemma3_text", Some("gemma3")),
    ("gemma3_vl_layout", Some("gemma3")),
    ("gemma4", Some("gemma4")),
    ("gemma4_vl_layout", Some("gemma4")),
    ("lfm2", Some("lfm2")),
    ("lfm2_moe", Some("lfm2_moe")),
    ("llama3_rope", Some("llama")),
    ("llama_gqa", Some("llama")),
    ("llama_linear_rope", Some("llama")),
    ("llama_tied_bias", Some("llama")),
    ("mistral_swa", Some("mistral")),
    ("mixtral", Some("mixtral")),
    ("olmo2", Some("olmo2")),
    ("phi3", Some("phi3")),
    ("phi3_longrope", Some("phi3")),
    ("qwen2_bias", Some("qwen2")),
    ("qwen2_moe", Some("qwen2_moe")),
    ("qwen3", Some("qwen3")),
    ("qwen3_5", Some("qwen3_5")),
    ("qwen3_5_moe", Some("qwen3_5_moe")),
    ("qwen3_5_moe_vl_layout", Some("qwen3_5_moe")),
    ("qwen3_5_vl_layout", Some("qwen3_5")),
    ("qwen3_moe", Some("qwen3_moe")),
    ("qwen3_next", Some("qwen3_next")),
    ("qwen3_yarn", Some("qwen3")),
    ("smollm3", Some("smollm3")),
];

fn supported() -> impl Iterator<Item = &'static str> {
    FIXTURES.iter().filter(|(_, family)| family.is_some()).map(|(name, _)| *name)
}

fn encoding(name: &str) -> Encoding {
    Encoding::parse(name, Encoding::VBIT_DEFAULT_MEAN_BITS).unwrap()
}

/// The last step of docs/adding-a-model-family.md: registry, table and fixtures agree.
#[test]
fn every_family_has_a_fixture_and_every_fixture_its_family() {
    let on_disk: BTreeSet<String> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = FIXTURES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed, on_disk, "the table FIXTURES must list every model fixture");

    let registered: BTreeSet<&str> = HfSource::families().into_iter().collect();
    let covered: BTreeSet<&str> = FIXTURES.iter().filter_map(|(_, family)| *family).collect();
    assert_eq!(covered, registered, "every registered family needs a fixture, and the other way round");

    for (name, family) in FIXTURES {
        let dir = fixtures().join(name);
        let file = JsonFile::read(&dir, CONFIG).unwrap().unwrap();
        let found = family::find(&file.object(), &file.text().unwrap());
        assert_eq!(found.as_ref().ok().map(|f| f.name), family, "{name}");
        let imported = HfSource::local(&dir).unwrap().import();
        match family {
            Some(_) => assert!(!imported.unwrap().tensors.is_empty(), "{name}"),
            None => assert!(matches!(imported, Err(ConvertError::UnsupportedFamily { .. })), "{name}"),
        }
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/adding-a-model-family.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for family in registered {
        assert!(docs.contains(&format!("`{family}`")), "docs/adding-a-model-family.md does not list `{family}`");
    }
}

#[test]
fn model_types_and_architectures_are_unique() {
    let mut seen = BTreeSet::new();
    for family in &family::FAMILIES {
        assert!(!family.model_types.is_empty() && !family.architectures.is_empty(), "{}", family.name);
        for key in family.model_types.iter().chain(family.architectures) {
            assert!(seen.insert(*key), "{key} occurs twice");
        }
    }
}

#[test]
fn both_spellings_of_the_configuration_give_the_same_file() {
    for name in supported() {
        let copy = Checkpoint::of(name);
        let v4 = std::fs::read(copy.path().join("config.v4.json")).unwrap();
        assert_ne!(v4, std::fs::read(copy.path().join(CONFIG)).unwrap(), "{name}");
        std::fs::write(copy.path().join(CONFIG), v4).unwrap();

        let out = tempfile::tempdir().unwrap();
        let options = ConvertOptions::new(encoding("q8_2f"));
        let files = [fixtures().join(name), copy.path().to_path_buf()].map(|dir| {
            let output = out.path().join(format!("{}.cmf", dir.starts_with(fixtures())));
            let source = HfSource::local(&dir).unwrap();
            let report = convert(&source, &output, &options, &NoProgress).unwrap();
            assert_eq!(report.tensors.values().map(|t| t.count).sum::<usize>(), source.import().unwrap().tensors.len());
            CmfFile::open(&output).unwrap()
        });
        let [a, b] = &files;
        assert!(a.verify().ok, "{name}");
        let (mut header_a, mut header_b) = (a.header().clone(), b.header().clone());
        assert_ne!(header_a.provenance.take(), header_b.provenance.take(), "{name}");
        assert_eq!(header_a, header_b, "{name}");
        assert_eq!(a.vocab(), b.vocab(), "{name}");
        assert_eq!(a.tensors().len(), b.tensors().len(), "{name}");
        for (index, (x, y)) in a.tensors().iter().zip(b.tensors()).enumerate() {
            assert_eq!((&x.name, x.dtype, &x.shape), (&y.name, y.dtype, &y.shape), "{name}");
            assert_eq!(a.data(index).unwrap(), b.data(index).unwrap(), "{name} {}", x.name);
        }
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 2, "{name}: nothing but the outputs");
    }
}

/// What is converted can be run: the header and the tensors lower to a program, in every encoding.
#[test]
fn converted_files_lower_to_programs() {
    for name in supported() {
        for quant in ["f32", "q8", "q8_2f", "q4t", "vbit", "q1"] {
            let out = tempfile::tempdir().unwrap();
            let output = out.path().join("m.cmf");
            let source = HfSource::local(&fixtures().join(name)).unwrap();
            convert(&source, &output, &ConvertOptions::new(encoding(quant)), &NoProgress).unwrap();
            let file = Arc::new(CmfFile::open(&output).unwrap());
            let weights = MappedWeights::new(Arc::clone(&file), None);
            if let Err(error) = Program::from_weights(file.header(), &weights) {
                panic!("{name} {quant}: {error}");
            }
        }
    }
}

#[test]
fn unquantised_files_hold_the_checkpoint_bit_for_bit() {
    for (name, quant) in [("llama_gqa", "f32"), ("qwen3", "bf16"), ("llama_tied_bias", "bf16")] {
        let out = tempfile::tempdir().unwrap();
        let output = out.path().join("m.cmf");
        let source = HfSource::local(&fixtures().join(name)).unwrap();
        let options = ConvertOptions::new(encoding(quant)).digests(false);
        convert(&source, &output, &options, &NoProgress).unwrap();
        let file = CmfFile::open(&output).unwrap();
        let model = source.import().unwrap();
        assert_eq!(model.tensors.len(), file.tensors().len());
        for tensor in &model.tensors {
            let index = file.find(&tensor.name).unwrap();
            let stored = file.data(index).unwrap();
            let values: Vec<f32> = match file.tensors()[index].dtype {
                Dtype::F32 => stored.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                Dtype::Bf16 => stored
                    .chunks_exact(2)
                    .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().unwrap())) << 16))
                    .collect(),
                other => panic!("{}: {other}", tensor.name),
            };
            assert_eq!((tensor.load)().unwrap(), values, "{name} {}", tensor.name);
        }
        let tokenizer = std::fs::read(fixtures().join(name).join(tokenizer::TOKENIZER)).unwrap();
        assert_eq!(file.vocab(), Some(tokenizer.as_slice()));
    }
}

/// Converts a fixture with the policy `V040` and compares it with the file that the public v0.4.0 converter wrote.
/// Gives the names of both.
fn same_as_v040(fixture: &str, quant: &str) -> [Vec<String>; 2] {
    let interop = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../interop/{fixture}-{quant}.cmf"));
    let theirs = CmfFile::open(&interop).unwrap();
    let out = tempfile::tempdir().unwrap();
    let output = out.path().join("m.cmf");
    let source = HfSource::local(&fixtures().join(fixture)).unwrap();
    let options = ConvertOptions::new(encoding(quant)).policy(Policy::V040).digests(false);
    convert(&source, &output, &options, &NoProgress).unwrap();
    let ours = CmfFile::open(&output).unwrap();

    for (index, b) in theirs.tensors().iter().enumerate() {
        let found = ours.find(&b.name).unwrap_or_else(|| panic!("{fixture} {quant}: {} is missing", b.name));
        let a = &ours.tensors()[found];
        assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape), "{fixture} {quant} {}", a.name);
        assert_eq!(ours.data(found).unwrap(), theirs.data(index).unwrap(), "{fixture} {quant} {}", a.name);
    }
    assert_eq!(ours.vocab(), theirs.vocab(), "{fixture}");
    let mut arch = ours.header().arch.clone();
    if fixture == "qwen3_moe" {
        // v0.4.0 does not know the key `num_local_experts`, and so describes no experts.
        assert_eq!((arch.moe.take().map(|moe| moe.num_experts), &theirs.header().arch.moe), (Some(8), &None));
    }
    assert_eq!(arch, theirs.header().arch, "{fixture}");
    assert_eq!(ours.header().quant_type, theirs.header().quant_type, "{fixture} {quant}");
    assert_eq!(ours.header().tokenizer_config, theirs.header().tokenizer_config, "{fixture}");
    assert_eq!(ours.header().extensions, theirs.header().extensions, "{fixture}");
    [ours, theirs].map(|file| file.tensors().iter().map(|t| t.name.clone()).collect())
}

/// The policy `V040` reproduces what the public v0.4.0 converter wrote.
#[test]
fn v040_payloads_are_byte_equal() {
    let [ours, theirs] = same_as_v040("llama_gqa", "vbit");
    assert_eq!(ours, theirs);
    let [ours, theirs] = same_as_v040("qwen3_moe", "vbit");
    assert_eq!(ours, theirs);
    for quant in ["q8", "q8_2f", "q4", "q4t", "vbit", "q1", "q1p", "q1s"] {
        // This checkpoint stores tensors of two dtypes; v0.4.0 went by name.
        let [mut ours, theirs] = same_as_v040("qwen3_5", quant);
        ours.sort_unstable();
        assert_eq!(ours, theirs, "{quant}");
    }
}

#[test]
fn narrow_matrices_fall_back_with_a_note() {
    let out = tempfile::tempdir().unwrap();
    let source = HfSource::local(&fixtures().join("llama_tied_bias")).unwrap();
    let options = ConvertOptions::new(encoding("q4t"));
    let report = convert(&source, &out.path().join("m.cmf"), &options, &NoProgress).unwrap();
    // The down projections have 176 columns, the embedding is q8_2f by policy.
    assert_eq!(report.tensors["q8_2f"].count, 3 + 1);
    let note = report.notes.iter().find(|n| n.contains("176 columns")).unwrap();
    assert!(note.starts_with("3 matrices") && note.contains("q4_tiled"), "{note}");
}

#[test]
fn the_output_may_not_replace_a_file_of_the_checkpoint() {
    let copy = Checkpoint::of("qwen3");
    let source = HfSource::local(copy.path()).unwrap();
    let options = ConvertOptions::new(encoding("q8")).overwrite(true);
    for file in [super::super::safetensors::SINGLE, CONFIG, tokenizer::TOKENIZER] {
        let error = convert(&source, &copy.path().join(file), &options, &NoProgress).unwrap_err();
        assert!(matches!(error, ConvertError::OutputIsSource { .. }), "{file}: {error}");
    }
    assert!(copy.import().is_ok());
}
