//! Names of parameters: those of the CO, and which known one a misspelt one is nearest to, for messages.

/// What names of the CO begin with: secrets, the filesystem, and whose claim it is.
pub(super) const RESERVED: &str = "csi.storage.k8s.io/";

/// Case counts for nothing. Empty where nothing is known.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a &'static str>) -> &'static str {
    let far = |known: &&&str| distance(&name.to_lowercase(), &known.to_lowercase());
    known.into_iter().min_by_key(far).copied().unwrap_or_default()
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}
