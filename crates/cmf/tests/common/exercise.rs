//! Everything that can be asked of an accepted file. Shared with the fuzz target.

use cortiq_cmf::{CmfFile, Section};

/// Calls every accessor; panics when one of them breaks a promise.
pub fn exercise(file: &CmfFile) {
    let mut sum = 0u64;
    for (index, tensor) in file.tensors().iter().enumerate() {
        let data = file.data(index).expect("every listed tensor has data");
        assert_eq!(data.len() as u64, tensor.nbytes);
        assert_eq!(data.as_ptr().align_offset(64), 0);
        assert_eq!(file.find(&tensor.name), Some(index));
        assert_eq!(file.find_with_skill(&tensor.name, Some("\0")), Some(index));
        sum = sum.wrapping_add(tensor.element_count());
        sum = data.iter().fold(sum, |s, b| s.wrapping_add(u64::from(*b)));
        if let Some(len) = tensor.dtype.fixed_len(&tensor.shape).expect("checked at open") {
            assert_eq!(len, tensor.nbytes);
        }
    }
    assert!(file.data(file.tensors().len()).is_err());
    exercise_masks(file);
    for section in Section::ALL {
        if let Some(bytes) = file.section_bytes(section) {
            sum = bytes.iter().fold(sum, |s, b| s.wrapping_add(u64::from(*b)));
        }
    }
    std::hint::black_box(sum);
    file.check_length().expect("bytes in memory do not change");
    file.header().check().expect("checked at open");
    assert!(file.header().to_json().is_ok());
    assert_eq!(file.header_digest().len(), 64);
    assert_eq!(file.plan().len(), file.tensors().len());
    assert_eq!(file.vocab().is_some(), file.sections().vocab.is_some());
    let report = file.verify();
    assert!(report.hashes_checked >= file.tensors().len());
    assert_eq!(report.ok, report.problems.is_empty());
}

fn exercise_masks(file: &CmfFile) {
    let Some(catalogue) = file.masks() else {
        assert!(!file.has_masks());
        return;
    };
    for mask in &catalogue.masks {
        assert!(file.has_mask(mask.task_id));
        let shape = mask.shape();
        assert_eq!(mask.bits().len(), shape.blob_len());
        for layer in 0..=shape.num_layers {
            // A bit behind the end is never set, and asking for it is allowed.
            assert!(!mask.neuron(layer, shape.intermediate_size));
            assert!(!mask.head(layer, shape.num_heads));
            std::hint::black_box((mask.neuron(layer, 0), mask.head(layer, 0)));
        }
        assert!(!mask.layer(shape.num_layers));
    }
    if let Some(index) = file.sparse_index() {
        for entry in &index.entries {
            assert!((entry.layer as usize) < file.header().arch.num_layers);
        }
    }
}
