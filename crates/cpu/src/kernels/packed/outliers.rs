//! Single weights beside the groups: what they add to the products.

use super::InputRows;

/// Outliers that are decoded together.
const TOGETHER: usize = 32;

/// `out[t * rows + r] += Σ change * x[t][col]` over the outliers `(col, change)` of a row; `x` as quantised. The order is
/// theirs, whatever the number of inputs.
pub(in crate::kernels) fn add_outliers(
    outliers: impl Iterator<Item = (usize, f32)>,
    x: InputRows<'_>,
    out: &mut [f32],
    (rows, r): (usize, usize),
) {
    let mut some = [(0, 0.0); TOGETHER];
    let mut count = 0;
    for outlier in outliers {
        some[count] = outlier;
        count += 1;
        if count == TOGETHER {
            add(&some, x, out, (rows, r));
            count = 0;
        }
    }
    add(&some[..count], x, out, (rows, r));
}

fn add(outliers: &[(usize, f32)], x: InputRows<'_>, out: &mut [f32], (rows, r): (usize, usize)) {
    if outliers.is_empty() {
        return;
    }
    for t in 0..x.len() {
        let (row, width) = (x.row(t), x.width());
        let y = &mut out[t * rows + r];
        for (col, change) in outliers {
            *y += change * row.value(width, *col);
        }
    }
}
