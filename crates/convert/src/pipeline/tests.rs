use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cortiq_cmf::{CmfFile, Dtype, Header, LayerType, ModelArch, QuantType};

use super::*;
use crate::{LoadFn, NativeDtype, NoProgress, Policy};

fn arch() -> ModelArch {
    ModelArch {
        arch_name: "test".to_owned(),
        hidden_size: 64,
        intermediate_size: 48,
        num_layers: 1,
        num_attention_heads: 2,
        num_kv_heads: 1,
        head_dim: 32,
        vocab_size: 8,
        layer_types: vec![LayerType::FullAttention],
        rms_norm_eps: 1e-6,
        max_position_embeddings: 128,
        ..ModelArch::default()
    }
}

fn tensor(name: &str, shape: &[u32], native: NativeDtype, load: LoadFn) -> SourceTensor {
    SourceTensor { name: name.to_owned(), shape: shape.to_vec(), native, load }
}

fn ramp(shape: &[u32]) -> LoadFn {
    let n: u32 = shape.iter().product();
    Box::new(move || Ok((0..n).map(|i| (i as f32 * 0.37).sin()).collect()))
}

const EMBED: &str = "model.embed_tokens.weight";
const DOWN: &str = "model.layers.0.mlp.down_proj.weight";
const GATE: &str = "model.layers.0.mlp.gate_proj.weight";

fn model() -> ImportedModel {
    let t = |name: &str, shape: &[u32]| tensor(name, shape, NativeDtype::F32, ramp(shape));
    ImportedModel {
        header: Header::new(arch(), QuantType::F32),
        tensors: vec![t("model.norm.weight", &[64]), t(DOWN, &[64, 48]), t(GATE, &[48, 64]), t(EMBED, &[8, 64])],
        tokenizer_json: Some(b"{}".to_vec()),
        notes: vec!["from the importer".to_owned()],
    }
}

fn source() -> WriteSource {
    WriteSource { label: "here".to_owned(), label_key: "source_model", tool: "cortiq convert", files: Vec::new() }
}

fn options(name: &str) -> ConvertOptions {
    ConvertOptions::new(Encoding::parse(name, 4.25).unwrap())
}

fn files_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[derive(Default)]
struct Recorder(RefCell<Vec<String>>);

impl Progress for Recorder {
    fn start(&self, total_bytes: u64, tensors: usize) {
        self.0.borrow_mut().push(format!("start {total_bytes} {tensors}"));
    }
    fn tensor(&self, name: &str, done_bytes: u64) {
        self.0.borrow_mut().push(format!("{name} {done_bytes}"));
    }
    fn finish(&self) {
        self.0.borrow_mut().push("finish".to_owned());
    }
}

#[test]
fn writes_what_the_report_says() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.cmf");
    let progress = Recorder::default();
    let report = write_model(model(), &source(), &output, &options("q4t"), &progress).unwrap();

    let file = CmfFile::open(&output).unwrap();
    let stored: Vec<(&str, Dtype)> = file.tensors().iter().map(|t| (t.name.as_str(), t.dtype)).collect();
    let expected =
        [(EMBED, Dtype::Q8_2f), (GATE, Dtype::Q4Tiled), (DOWN, Dtype::Q8_2f), ("model.norm.weight", Dtype::F32)];
    assert_eq!(stored, expected);
    let values = (model().tensors[2].load)().unwrap();
    let payload = encode_fitted(&Encoding::Q4Tiled, Fit::LeastSquares, &values, 48, 64).unwrap();
    assert_eq!(file.data(1).unwrap(), payload);
    assert_eq!(file.vocab(), Some(b"{}".as_slice()));
    assert!(file.verify().ok);
    assert!(file.header().digests.is_some());
    assert_eq!(file.header().quant_type, QuantType::Q4Block);
    let provenance = serde_json::json!({
        "original_dtype": "f32",
        "source_model": "here",
        "tool": concat!("cortiq convert ", env!("CARGO_PKG_VERSION")),
    });
    assert_eq!(file.header().provenance, Some(provenance));

    assert_eq!(report.bytes, std::fs::metadata(&output).unwrap().len());
    let bytes = |i: usize| file.tensors()[i].nbytes;
    assert_eq!(report.tensors["q8_2f"], DtypeTotal { count: 2, bytes: bytes(0) + bytes(2) });
    assert_eq!(report.tensors["f32"], DtypeTotal { count: 1, bytes: 256 });
    let rows: Vec<_> = report.rows.iter().map(|r| (r.kind, r.dtype, r.total.bytes)).collect();
    let expected = [
        ("embedding", "q8_2f", bytes(0)),
        ("ffn", "q4_tiled", bytes(1)),
        ("ffn", "q8_2f", bytes(2)),
        ("norms", "f32", 256),
    ];
    assert_eq!(rows, expected);
    assert_eq!(report.notes[0], "from the importer");
    assert!(report.notes[1].contains(DOWN) && report.notes[1].contains("q4_tiled"), "{}", report.notes[1]);
    assert_eq!(report.notes.len(), 2);

    let total = 4 * (64 + 2 * 64 * 48 + 8 * 64);
    let log = progress.0.borrow();
    assert_eq!(log[0], format!("start {total} 4"));
    assert_eq!(log[4..], [format!("model.norm.weight {total}"), "finish".to_owned()]);
}

#[test]
fn at_most_two_tensors_are_in_memory() {
    let loaded = Arc::new(AtomicUsize::new(0));
    let mut model = model();
    for tensor in &mut model.tensors {
        let (loaded, inner) = (Arc::clone(&loaded), std::mem::replace(&mut tensor.load, Box::new(|| Ok(Vec::new()))));
        tensor.load = Box::new(move || {
            loaded.fetch_add(1, Ordering::SeqCst);
            inner()
        });
    }
    let choices: Vec<Choice> = {
        let planner = Planner::new(&options("f32")).unwrap();
        model.tensors.iter().map(|t| planner.choose(t)).collect()
    };
    let mut written = 0;
    let mut most = 0;
    stream(&model.tensors, &choices, Fit::Peak, &NoProgress, |_, _, _| {
        // Give the loader all the time it wants to run ahead.
        std::thread::sleep(std::time::Duration::from_millis(20));
        most = most.max(loaded.load(Ordering::SeqCst) - written);
        written += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!((written, loaded.load(Ordering::SeqCst)), (4, 4));
    assert_eq!(most, 2);
}

#[test]
fn a_failing_tensor_leaves_nothing() {
    let fails: [(&str, LoadFn); 4] = [
        ("gave 3 values", Box::new(|| Ok(vec![0.0; 3]))),
        ("not finite", Box::new(|| Ok(vec![f32::NAN; 64 * 48]))),
        ("`lost` is missing", Box::new(|| Err(ConvertError::MissingTensor { name: "lost".to_owned() }))),
        ("exceeds", Box::new(|| Ok(vec![f32::MAX; 64 * 48]))),
    ];
    for (needle, load) in fails {
        let dir = tempfile::tempdir().unwrap();
        let mut model = model();
        model.tensors[1].load = load;
        let error = write_model(model, &source(), &dir.path().join("m.cmf"), &options("q8"), &NoProgress).unwrap_err();
        let text = format!("{error}");
        assert!(text.contains(needle), "{text}");
        assert!(needle.contains("lost") || text.contains(DOWN), "{text}");
        assert_eq!(files_in(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn values_beyond_f16_are_refused_there_only() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.cmf");
    let with = |value: f32| {
        let mut model = model();
        model.tensors[1].load = Box::new(move || Ok(vec![value; 64 * 48]));
        model
    };
    let write =
        |model, quant: &str| write_model(model, &source(), &output, &options(quant).overwrite(true), &NoProgress);
    let error = write(with(65_520.0), "f16").unwrap_err();
    assert!(matches!(&error, ConvertError::F16Overflow { name } if name == DOWN), "{error}");
    assert_eq!(files_in(dir.path()), Vec::<String>::new());
    write(with(65_519.0), "f16").unwrap();
    write(with(-65_520.0), "bf16").unwrap();
}

#[test]
fn a_panic_of_the_loader_becomes_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..4 {
        let mut model = model();
        model.tensors[index].load = Box::new(|| panic!("a bug"));
        let output = dir.path().join("m.cmf");
        let error = write_model(model, &source(), &output, &options("q8"), &NoProgress).unwrap_err();
        assert!(matches!(error, ConvertError::LoaderPanicked), "{error}");
        assert_eq!(files_in(dir.path()), Vec::<String>::new());
    }
}

#[test]
fn an_existing_output_needs_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.cmf");
    std::fs::write(&output, "old").unwrap();
    let error = write_model(model(), &source(), &output, &options("q8"), &NoProgress).unwrap_err();
    assert!(matches!(error, ConvertError::OutputExists { .. }), "{error}");
    assert_eq!(std::fs::read(&output).unwrap(), b"old");

    // A failure while overwriting keeps the old file.
    let mut broken = model();
    broken.tensors[1].load = Box::new(|| Ok(Vec::new()));
    let options = options("q8").overwrite(true);
    write_model(broken, &source(), &output, &options, &NoProgress).unwrap_err();
    assert_eq!(std::fs::read(&output).unwrap(), b"old");
    assert_eq!(files_in(dir.path()), ["m.cmf"]);

    write_model(model(), &source(), &output, &options, &NoProgress).unwrap();
    assert!(CmfFile::open(&output).is_ok());
    assert_eq!(files_in(dir.path()), ["m.cmf"]);
}

#[test]
fn the_output_is_neither_a_source_file_nor_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    std::fs::write(&file, "weights").unwrap();
    let mut source = source();
    source.files.push(file);
    let options = options("q8").overwrite(true);
    let output = dir.path().join(".").join("model.gguf");
    let error = write_model(model(), &source, &output, &options, &NoProgress).unwrap_err();
    assert!(matches!(error, ConvertError::OutputIsSource { .. }), "{error}");
    let error = write_model(model(), &source, dir.path(), &options, &NoProgress).unwrap_err();
    assert!(matches!(error, ConvertError::Io { .. }), "{error}");
    assert_eq!(std::fs::read(output).unwrap(), b"weights");
}

#[test]
fn extensions_are_declared_whatever_the_importer_did() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.cmf");
    let mut model = model();
    let shape = [64];
    let bias = "model.layers.0.mlp.down_proj.bias";
    model.tensors.push(tensor(bias, &shape, NativeDtype::F32, ramp(&shape)));
    let options = options("f32").policy(Policy::Default).digests(false);
    write_model(model, &source(), &output, &options, &NoProgress).unwrap();
    let file = CmfFile::open(&output).unwrap();
    assert_eq!(file.header().extensions, ["linear_bias"]);
    assert!(file.header().digests.is_none());
}
