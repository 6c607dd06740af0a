//! The header-only stream that `rbd import --export-format 2` reads: an image with all its metadata in one process.
//! Ceph's doc/dev/rbd-export.rst and rbd-diff.rst describe the format. Pure.

/// An empty image of `size` bytes with this metadata, in this order. `rbd` makes the image, then the metadata, then
/// the size: the last record and the size together prove that the import came to its end.
pub(crate) fn empty_image<'a>(size: u64, meta: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut stream = b"rbd image v2\n".to_vec();
    for (key, value) in meta {
        stream.push(b'M');
        put(&mut stream, (key.len() + value.len() + 8) as u64);
        put_text(&mut stream, key);
        put_text(&mut stream, value);
    }
    stream.extend_from_slice(b"Erbd image diffs v2\n");
    put(&mut stream, 1);
    stream.extend_from_slice(b"rbd diff v2\n");
    stream.push(b's');
    put(&mut stream, 8);
    put(&mut stream, size);
    stream.push(b'e');
    stream
}

fn put(stream: &mut Vec<u8>, number: u64) {
    stream.extend_from_slice(&number.to_le_bytes());
}

fn put_text(stream: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    stream.extend_from_slice(&length.to_le_bytes());
    stream.extend_from_slice(text.as_bytes());
}
