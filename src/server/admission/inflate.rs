//! Decompresses messages within their size limit.

use std::io::{self, Read};

use super::budget::{Charge, ConnectionFull};

/// The compression of a call's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// Parses the value of `grpc-encoding`. `None` if the messages are not compressed, or
    /// compressed in a way that the services themselves refuse.
    pub(crate) fn of(value: &[u8]) -> Option<Self> {
        match value {
            b"gzip" => Some(Self::Gzip),
            b"zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Why a message was not decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InflateFault {
    /// It exceeds its size limit.
    TooLarge,
    /// It is not valid in its encoding.
    Broken,
    /// Too many bytes are in flight.
    NoRoom,
}

/// Decompresses a message of at most `max` bytes. The result begins with `prefix_bytes` zeros.
/// Decompressed bytes are charged while the result grows.
///
/// # Errors
/// [`InflateFault`], as soon as it is known.
pub(super) fn inflate(
    encoding: Encoding,
    compressed: &[u8],
    (prefix_bytes, max): (usize, usize),
    charge: &Charge,
) -> Result<Vec<u8>, InflateFault> {
    let whole = vec![0; prefix_bytes];
    let max = prefix_bytes + max;
    match encoding {
        Encoding::Gzip => {
            let plain = flate2::read::GzDecoder::new(compressed);
            read_all(plain, whole, max, charge)
        }
        Encoding::Zstd => {
            let mut plain = zstd::stream::read::Decoder::with_buffer(compressed)
                .map_err(|_| InflateFault::Broken)?;
            plain
                .window_log_max(window_log(max))
                .map_err(|_| InflateFault::Broken)?;
            read_all(plain, whole, max, charge)
        }
    }
}

/// Returns the log of the largest window that the decoder accepts: no larger than the message may
/// be, or than zstd's default.
fn window_log(max: usize) -> u32 {
    const SMALLEST: u32 = 10;
    const DEFAULT: u32 = 27;
    max.max(1).ilog2().clamp(SMALLEST, DEFAULT)
}

fn read_all(
    mut plain: impl Read,
    mut whole: Vec<u8>,
    max: usize,
    charge: &Charge,
) -> Result<Vec<u8>, InflateFault> {
    const STEP_BYTES: usize = 16 << 10;
    let mut step = [0; STEP_BYTES];
    loop {
        let read = match plain.read(&mut step) {
            Ok(0) => return Ok(whole),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(InflateFault::Broken),
        };
        if whole.len() + read > max {
            return Err(InflateFault::TooLarge);
        }
        charge
            .grow(read)
            .map_err(|ConnectionFull| InflateFault::NoRoom)?;
        if whole.capacity() - whole.len() < read {
            // Double the buffer, but not beyond the limit.
            let more = whole.len().max(STEP_BYTES).min(max - whole.len());
            whole.reserve_exact(more.max(read));
        }
        whole.extend_from_slice(&step[..read]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{
        super::budget::{Account, Pool},
        *,
    };

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn plain(encoding: Encoding, compressed: &[u8], max: usize) -> Result<Vec<u8>, InflateFault> {
        let charge = Charge::new(Account::new(Pool::new(1 << 30)));
        inflate(encoding, compressed, (0, max), &charge)
    }

    // A decompression bomb must end at the limit, and a message just within it must pass.
    #[test]
    fn decompression_stops_at_the_limit() {
        let text = vec![7; 1 << 20];
        for (encoding, compressed) in [
            (Encoding::Gzip, gzip(&text)),
            (Encoding::Zstd, zstd::encode_all(&text[..], 3).unwrap()),
        ] {
            assert!(compressed.len() < 5_000);
            assert_eq!(plain(encoding, &compressed, 4 << 20).unwrap(), text);
            let fault = plain(encoding, &compressed, (1 << 20) - 1).unwrap_err();
            let expected = [InflateFault::TooLarge, InflateFault::Broken];
            assert!(expected.contains(&fault));
            let fault = plain(encoding, &compressed[..40], 4 << 20).unwrap_err();
            assert_eq!(fault, InflateFault::Broken);
        }
        let fault = plain(Encoding::Gzip, &gzip(&text), 1_000).unwrap_err();
        assert_eq!(fault, InflateFault::TooLarge);
    }

    // Many bombs at once can fill the memory, each within its limit: bytes must be counted while
    // they grow.
    #[test]
    fn decompressed_bytes_count_while_they_grow() {
        let bomb = gzip(&vec![7; 1 << 20]);
        let charge = Charge::new(Account::new(Pool::new(1 << 20)));
        let fault = inflate(Encoding::Gzip, &bomb, (0, 4 << 20), &charge).unwrap_err();
        assert_eq!(fault, InflateFault::NoRoom);
    }

    // A few bytes of zstd can request a window of 128 MiB before any content: the decoder must not
    // allocate one for a message that cannot be so large.
    #[test]
    fn oversized_zstd_window_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(b"small").unwrap();
        let compressed = encoder.finish().unwrap();
        let fault = plain(Encoding::Zstd, &compressed, 1 << 20).unwrap_err();
        assert_eq!(fault, InflateFault::Broken);
        let text = plain(Encoding::Zstd, &compressed, 160 << 20).unwrap();
        assert_eq!(text, b"small");
    }
}
