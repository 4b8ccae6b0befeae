//! Decompresses bodies.

use std::io::Read;

use bytes::Bytes;

/// Largest decompressed body, in bytes. A small compressed body can expand enormously.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Returns the decompressed body, or the part of it that arrived. `None` for an unknown encoding,
/// or a body that is too large.
pub(crate) fn decoded(body: &Bytes, encoding: &str) -> Option<Bytes> {
    match encoding.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Some(body.clone()),
        "gzip" | "x-gzip" => read(flate2::read::MultiGzDecoder::new(&body[..])),
        "deflate" => read(flate2::read::ZlibDecoder::new(&body[..])),
        "zstd" => read(zstd::stream::read::Decoder::new(&body[..]).ok()?),
        _ => None,
    }
}

fn read(content: impl Read) -> Option<Bytes> {
    let mut content = content.take(BODY_BYTES_MAX + 1);
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    // A truncated body ends with an error; the part before it is kept.
    while let Ok(read) = content.read(&mut buffer) {
        if read == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
    (bytes.len() as u64 <= BODY_BYTES_MAX).then(|| bytes.into())
}
