//! Reads bodies that are compressed.

use std::io::Read;

use bytes::Bytes;

/// Largest body that is read, in bytes: a small compressed one may be very large.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Returns the content of a body, as far as it came. `None` for an unknown encoding, or a body that
/// is too large.
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
    // A body that broke off ends with an error; what was read before is kept.
    while let Ok(read) = content.read(&mut buffer) {
        if read == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
    (bytes.len() as u64 <= BODY_BYTES_MAX).then(|| bytes.into())
}
