//! Files and vectors of the public v0.4.0 tools.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed expectation fails the test

mod common;
use common::*;
use cortiq_cmf::*;

#[test]
fn hash64_vectors() {
    let vectors = vectors();
    let all = vectors["hash64"].as_array().unwrap();
    assert_eq!(all.len(), 11);
    for vector in all {
        let data = unhex(vector["hex"].as_str().unwrap());
        let hash = format!("{:016x}", hash64(&data));
        assert_eq!(hash, vector["hash"].as_str().unwrap(), "{vector}");
    }
}

#[test]
fn dtype_vectors_have_valid_payloads() {
    let vectors = vectors();
    let mut tensors = Vec::new();
    for vector in vectors["dtype"].as_array().unwrap() {
        let shape = vector["shape"].as_array().unwrap();
        let shape: Vec<u32> = shape.iter().map(|d| d.as_u64().unwrap() as u32).collect();
        let dtype = Dtype::from_name(vector["dtype"].as_str().unwrap()).unwrap();
        let payload = unhex(vector["payload"].as_str().unwrap());
        tensors.push((plan(vector["name"].as_str().unwrap(), dtype, &shape), payload));
    }
    assert!(tensors.len() >= 18);
    let bytes = written(header(), &tensors, Sections::default(), true);
    let file = CmfFile::from_bytes(bytes).unwrap();
    for (i, (_, payload)) in tensors.iter().enumerate() {
        assert_eq!(file.data(i).unwrap(), payload.as_slice());
    }
    assert!(file.verify().ok);
}

/// File A of §15 from its parts.
#[test]
fn file_a_is_written_byte_for_byte() {
    let bytes = written(header(), &two_tensors(), Sections::default(), false);
    assert_eq!(bytes.len(), 4166);
    assert!(bytes == interop("fileA.cmf"));
}

/// File B of §15 from its parts: masks, vocabulary, sparse index.
#[test]
fn file_b_is_written_byte_for_byte() {
    let sections = Sections { masks: Some(masks()), vocab: Some(br#"{"model":{"vocab":{}}}"#.to_vec()) };
    let bytes = written(header(), &two_tensors(), sections, false);
    assert_eq!(bytes.len(), 4665);
    assert!(bytes == interop("fileB.cmf"));
}

#[test]
fn file_b_reads_back() {
    let file = CmfFile::from_bytes(interop("fileB.cmf")).unwrap();
    assert_eq!(file.masks(), Some(&masks()));
    assert_eq!(file.vocab(), Some(&br#"{"model":{"vocab":{}}}"#[..]));
    assert_eq!(file.features(), FEATURE_TENSOR_DIR | FEATURE_BINARY_MASKS);
    let index = file.sparse_index().unwrap();
    let shape = MaskShape::from(&file.header().arch);
    assert_eq!(index, &SparseIndex::from_masks(&masks(), shape).unwrap());
    let entry = |task_id, layer, groups: &[u16], heads: &[u8]| IndexEntry {
        task_id,
        layer,
        groups: groups.to_vec(),
        heads: heads.to_vec(),
    };
    assert_eq!(index.entries, [entry(0, 0, &[0, 1], &[0, 2]), entry(0, 1, &[1], &[1]), entry(7, 0, &[0], &[0]),]);
    assert!(file.has_mask(7) && !file.has_mask(1));
}

#[test]
fn every_file_opens_and_verifies_in_all_modes() {
    for path in interop_files() {
        let modes = [
            CmfFile::open(&path),
            CmfFile::open_owned(&path),
            CmfFile::open_sharded(&path),
            CmfFile::from_bytes(std::fs::read(&path).unwrap()),
        ];
        for file in modes {
            let file = file.unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let report = file.verify();
            assert!(report.ok, "{path:?}: {:?}", report.problems);
            // Header, directory and all tensors; the vocabulary where there is one.
            assert!(report.hashes_checked >= file.tensors().len() + 2);
            assert_eq!(report.digests_checked, 0);
            assert_eq!(report.hashes_absent, 0);
            exercise::exercise(&file);
        }
    }
}

#[test]
fn every_header_is_reproduced() {
    for path in interop_files() {
        let file = CmfFile::open(&path).unwrap();
        let raw = file.section_bytes(Section::Header).unwrap();
        let again = file.header().to_json().unwrap();
        assert_eq!(String::from_utf8_lossy(raw), String::from_utf8_lossy(&again), "{path:?}");
    }
}

#[test]
fn every_file_is_rewritten_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    for path in interop_files() {
        let file = CmfFile::open(&path).unwrap();
        let copy = dir.path().join(path.file_name().unwrap());
        let summary = file.write_to(&copy, file.header().clone(), WriteOptions::default()).unwrap();
        let (old, new) = (std::fs::read(&path).unwrap(), std::fs::read(&copy).unwrap());
        assert_eq!(summary.bytes, new.len() as u64);
        assert!(old == new, "{path:?}");
    }
}

/// The same through hashes and digests of our own.
#[test]
fn digests_can_be_added_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let old = CmfFile::open(&interop_path("qwen3_5-q1s.cmf")).unwrap();
    let with = dir.path().join("with.cmf");
    let options = WriteOptions { digests: true, overwrite: false };
    let summary = old.write_to(&with, old.header().clone(), options).unwrap();
    let file = CmfFile::open(&with).unwrap();
    assert_eq!(file.header_digest(), summary.header_digest);
    let report = file.verify();
    assert!(report.ok, "{:?}", report.problems);
    // Directory, vocabulary and all tensors.
    assert_eq!(report.digests_checked, file.tensors().len() + 2);
    let without = dir.path().join("without.cmf");
    file.write_to(&without, file.header().clone(), WriteOptions::default()).unwrap();
    assert!(std::fs::read(without).unwrap() == interop("qwen3_5-q1s.cmf"));
}
