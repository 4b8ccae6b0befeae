//! The zstd dictionary for the bodies of a segment.

use std::{
    fmt, io,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use zstd::bulk::{Compressor, Decompressor};

use crate::frame::looks_incompressible;

/// Maximum dictionary size, in bytes.
pub(crate) const BYTES_MAX: usize = 100 * 1024;
/// zstd recommends training a dictionary on about a hundred times its size.
const SAMPLES_FOR_EACH_BYTE: usize = 100;
/// Minimum dictionary size, in bytes: a smaller one saves less than it costs.
const BYTES_MIN: usize = 4 * 1024;
/// Maximum sample size, in bytes. Longer samples are cut: a dictionary helps mostly with the
/// beginning of a body.
const SAMPLE_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of idle decompression contexts kept for concurrent reads. Each takes about the
/// size of the dictionary plus 160 KiB.
const IDLE_MAX: usize = 2;

/// A dictionary: content that the bodies of a segment have in common.
pub struct Dictionary {
    bytes: Bytes,
    crc: u32,
    /// Idle contexts that have the dictionary loaded.
    idle: Mutex<Vec<Decompressor<'static>>>,
}

impl Dictionary {
    /// Loads a trained dictionary.
    ///
    /// # Errors
    /// When the bytes are not a dictionary.
    pub fn new(bytes: Bytes) -> io::Result<Self> {
        if bytes.is_empty() || bytes.len() > BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let context = Decompressor::with_dictionary(&bytes)?;
        let crc = crc32c::crc32c(&bytes);
        if crc == 0 {
            // 0 means that a block needs no dictionary.
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            crc,
            bytes,
            idle: Mutex::new(vec![context]),
        })
    }

    /// Trains a dictionary on bodies. Returns `None` when there is too little data, or when the
    /// bodies have nothing in common.
    #[must_use]
    pub fn train(samples: &Samples) -> Option<Self> {
        let bytes = samples.bytes.len() / SAMPLES_FOR_EACH_BYTE;
        if bytes < BYTES_MIN {
            return None;
        }
        let size = bytes.min(BYTES_MAX);
        let trained = zstd::dict::from_continuous(&samples.bytes, &samples.sizes, size);
        trained
            .and_then(|bytes| Self::new(bytes.into()))
            .inspect_err(|error| tracing::debug!(%error, "no dictionary could be trained"))
            .ok()
    }

    /// Returns the bytes of the dictionary.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the CRC32C of the bytes, by which blocks reference the dictionary.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    pub(super) fn compressor(&self, level: i32) -> io::Result<Compressor<'static>> {
        Compressor::with_dictionary(level, &self.bytes)
    }

    pub(super) fn decompress(&self, packed: &[u8], raw_len: usize) -> io::Result<Vec<u8>> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle().pop();
        let mut context = match waiting {
            Some(context) => context,
            None => Decompressor::with_dictionary(&self.bytes)?,
        };
        let raw = context.decompress(packed, raw_len)?;
        let mut idle = idle();
        if idle.len() < IDLE_MAX {
            idle.push(context);
        }
        Ok(raw)
    }
}

impl PartialEq for Dictionary {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Dictionary {}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dictionary")
            .field("bytes", &self.bytes.len())
            .field("crc", &self.crc)
            .finish_non_exhaustive()
    }
}

/// Bodies for training a dictionary, sampled from the whole segment.
#[derive(Default)]
pub struct Samples {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl Samples {
    /// Maximum total size of samples, in bytes; more are ignored.
    pub const BYTES_MAX: usize = BYTES_MAX * SAMPLES_FOR_EACH_BYTE;

    /// Adds a body, or its beginning. Skips bodies that look incompressible: they have nothing in
    /// common with others and cost as much time.
    pub fn push(&mut self, body: &[u8]) {
        let body = &body[..body.len().min(SAMPLE_BYTES_MAX)];
        let full = self.bytes.len() + body.len() > Self::BYTES_MAX;
        if body.is_empty() || full || looks_incompressible(body) {
            return;
        }
        self.bytes.extend_from_slice(body);
        self.sizes.push(body.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::samples;

    // Incompressible bodies must be skipped: training on images and archives took half of the time
    // to rewrite a segment and gave a useless dictionary.
    #[test]
    fn dictionary_is_not_trained_on_noise() {
        let mut samples = Samples::default();
        for _ in 0..4_000 {
            samples.push(&samples::noise(1_024));
        }
        assert!(samples.sizes.is_empty());
        for length in 0..4_000 {
            samples.push(&samples::prose(200 + length % 700));
        }
        assert_eq!(samples.sizes.len(), 4_000);
        assert!(Dictionary::train(&samples).is_some());
    }
}
