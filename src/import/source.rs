//! Reads lines from a file, a compressed file, or standard input.
//!
//! Compression is detected from the first bytes, not from the name. A line that is too long or
//! unreadable is an error for that line only. At most one line is in memory.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use bytes::Bytes;

/// Longest line in bytes: a whole conversation with its tool results. The largest line in the real
/// files used for development has 2.5 MB.
pub const LINE_BYTES_MAX: usize = 256 << 20;

/// Maximum number of JSON values in a line: a conversation of a hundred thousand messages. Without
/// this limit, a parsed line could take many times its size in memory.
pub(crate) const LINE_VALUES_MAX: usize = 4 << 20;

const BUFFER_BYTES: usize = 256 * 1024;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Opens a file that was discovered, not named by the user. Only regular files: reading a pipe
/// would block, and a device may have no end.
///
/// # Errors
/// When it is not a regular file or cannot be opened.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    // Without this flag, opening a pipe would block.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// True when the path is inside the folder after following links: files elsewhere do not belong to
/// it.
#[must_use]
pub fn is_inside(path: &Path, folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize();
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    real(path).is_ok_and(|path| real(folder).is_ok_and(|folder| path.starts_with(folder)))
}

/// Returns why a file that was discovered in a folder is not read; `None` if it is.
#[must_use]
pub fn why_left_out(path: &Path, folder: &Path) -> Option<&'static str> {
    let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    if is_link && path.exists() && !is_inside(path, folder) {
        return Some(
            "it is a link to a target outside the folder and is not followed: to import the \
             target, name it",
        );
    }
    let is_other = path.metadata().is_ok_and(|meta| !meta.is_file());
    is_other.then_some("it is not a regular file and is not read")
}

/// Why a line was not read.
#[derive(Debug, thiserror::Error)]
pub enum LineFault {
    /// The line exceeds the limit; the following lines are still read.
    #[error("the line has more than {max} bytes, the maximum")]
    TooLong {
        /// The limit in bytes.
        max: usize,
    },
    /// Reading failed; no further lines follow.
    #[error("reading stopped here: {0}")]
    Read(#[from] io::Error),
}

/// The lines of one source. Iterates over `(line number from 1, line)` and skips blank lines.
pub struct LineSource {
    reader: Box<dyn BufRead>,
    line: u64,
    bytes_max: usize,
    done: bool,
    ended: bool,
}

impl LineSource {
    /// Opens a file, or standard input for `-`. Calls `progress` with the number of bytes of the
    /// source (before decompression) after each read.
    ///
    /// # Errors
    /// When the file cannot be opened or its first bytes cannot be read.
    pub fn open(path: &Path, progress: impl FnMut(u64) + 'static) -> io::Result<Self> {
        if path.as_os_str() == "-" {
            Self::new(io::stdin(), progress)
        } else {
            Self::new(File::open(path)?, progress)
        }
    }

    /// Opens a file that was discovered, not named by the user: see `open_regular`.
    ///
    /// # Errors
    /// When it is not a regular file, cannot be opened, or its first bytes cannot be read.
    pub fn open_found(path: &Path, progress: impl FnMut(u64) + 'static) -> io::Result<Self> {
        Self::new(open_regular(path)?, progress)
    }

    /// Reads lines from any reader.
    ///
    /// # Errors
    /// When the first bytes cannot be read.
    pub fn new(
        reader: impl Read + 'static,
        progress: impl FnMut(u64) + 'static,
    ) -> io::Result<Self> {
        let mut counted = ProgressReader { reader, progress };
        let mut head = Vec::with_capacity(ZSTD_MAGIC.len());
        (&mut counted)
            .take(ZSTD_MAGIC.len() as u64)
            .read_to_end(&mut head)?;
        let gzip = head.starts_with(GZIP_MAGIC);
        let zstd = head.starts_with(ZSTD_MAGIC);
        let whole = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(head).chain(counted));
        let reader: Box<dyn BufRead> = if gzip {
            let plain = flate2::bufread::MultiGzDecoder::new(whole);
            Box::new(BufReader::with_capacity(
                BUFFER_BYTES,
                DecompressedReader(plain),
            ))
        } else if zstd {
            let plain = zstd::stream::read::Decoder::with_buffer(whole)?;
            Box::new(BufReader::with_capacity(
                BUFFER_BYTES,
                DecompressedReader(plain),
            ))
        } else {
            Box::new(whole)
        };
        Ok(Self {
            reader,
            line: 0,
            bytes_max: LINE_BYTES_MAX,
            done: false,
            ended: true,
        })
    }

    /// Sets another limit for a line, in bytes.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_line_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Returns the first bytes, at most `bytes_max`. They are still read as lines later.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn head(&mut self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        let read = (&mut self.reader)
            .take(bytes_max as u64)
            .read_to_end(&mut head);
        let rest = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        let again = io::Cursor::new(head.clone()).chain(rest);
        self.reader = Box::new(BufReader::with_capacity(BUFFER_BYTES, again));
        read.map(|_| head)
    }

    /// False when the last line that was read has no line end: its writer may not have finished it.
    #[must_use]
    pub fn last_line_ended(&self) -> bool {
        self.ended
    }

    /// Returns the next line without its end; `None` at the end of the source.
    fn read_line(&mut self) -> Result<Option<Vec<u8>>, LineFault> {
        let mut line = Vec::new();
        let bound = self.bytes_max as u64 + 2;
        let read = (&mut self.reader)
            .take(bound)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        let ended = line.last() == Some(&b'\n');
        self.ended = ended;
        while line.last().is_some_and(|end| matches!(end, b'\n' | b'\r')) {
            line.pop();
        }
        if line.len() > self.bytes_max {
            drop(line);
            if !ended {
                self.ended = self.skip_line()?;
            }
            let max = self.bytes_max;
            return Err(LineFault::TooLong { max });
        }
        if self.line == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        Ok(Some(line))
    }

    /// Skips the rest of a line; true when it had an end.
    fn skip_line(&mut self) -> io::Result<bool> {
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(false);
            }
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let used = end.map_or(buffer.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

impl Iterator for LineSource {
    type Item = (u64, Result<Bytes, LineFault>);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            match self.read_line() {
                Ok(None) => self.done = true,
                Ok(Some(line)) if line.iter().all(u8::is_ascii_whitespace) => {}
                Ok(Some(line)) => return Some((self.line, Ok(line.into()))),
                Err(fault) => {
                    if matches!(fault, LineFault::Read(_)) {
                        self.done = true;
                        self.line += 1;
                    }
                    return Some((self.line, Err(fault)));
                }
            }
        }
        None
    }
}

/// A decompressed source. Replaces the messages of the decompression libraries with our own.
struct DecompressedReader<R>(R);

impl<R: Read> Read for DecompressedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| {
            let what = format!("the compressed file is truncated or damaged ({error})");
            io::Error::new(error.kind(), what)
        })
    }
}

struct ProgressReader<R, F> {
    reader: R,
    progress: F,
}

impl<R: Read, F: FnMut(u64)> Read for ProgressReader<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        (self.progress)(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io::Write, rc::Rc};

    use super::*;

    const TEXT: &[u8] = b"\xef\xbb\xbfone\r\n\n  \ntwo\nthree";

    fn lines(bytes: Vec<u8>) -> Vec<(u64, String)> {
        let source = LineSource::new(io::Cursor::new(bytes), |_| {}).unwrap();
        source
            .map(|(line, text)| {
                let text = text.unwrap();
                (line, String::from_utf8(text.to_vec()).unwrap())
            })
            .collect()
    }

    // Names are not reliable (standard input has none): the content alone must determine the
    // compression, and line numbers must be those of the plain text.
    #[test]
    fn compression_is_detected_from_content() {
        let expected = [(1, "one"), (4, "two"), (5, "three")].map(|(n, t)| (n, t.to_owned()));
        assert_eq!(lines(TEXT.to_vec()), expected);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(TEXT).unwrap();
        assert_eq!(lines(gzip.finish().unwrap()), expected);
        assert_eq!(lines(zstd::encode_all(TEXT, 1).unwrap()), expected);
        assert!(lines(Vec::new()).is_empty());
    }

    // An endless line must neither fill the memory nor lose the lines after it.
    #[test]
    fn long_line_is_an_error_and_is_skipped() {
        let mut bytes = vec![b'x'; 1_000_000];
        bytes.extend(b"\nnext\n");
        let source = LineSource::new(io::Cursor::new(bytes), |_| {}).unwrap();
        let read: Vec<_> = source.with_line_bytes_max(10).collect();
        assert!(matches!(read[0], (1, Err(LineFault::TooLong { max: 10 }))));
        assert!(matches!(&read[1], (2, Ok(line)) if line.as_ref() == b"next"));
        assert_eq!(read.len(), 2);
        let exact = LineSource::new(io::Cursor::new(b"0123456789\r\n".to_vec()), |_| {}).unwrap();
        assert!(exact.with_line_bytes_max(10).all(|(_, line)| line.is_ok()));
    }

    // A truncated file must yield its good lines, then one error, then the end.
    #[test]
    fn truncated_file_ends_with_one_error() {
        let text = "line\n".repeat(1000);
        let mut bytes = zstd::encode_all(text.as_bytes(), 1).unwrap();
        bytes.truncate(bytes.len() - 3);
        let source = LineSource::new(io::Cursor::new(bytes), |_| {}).unwrap();
        let read: Vec<_> = source.collect();
        let last = read.last().unwrap();
        assert!(matches!(last.1, Err(LineFault::Read(_))));
        assert_eq!(read.iter().filter(|(_, line)| line.is_err()).count(), 1);
    }

    // A progress bar needs the number of bytes of the file on disk.
    #[test]
    fn progress_counts_every_byte_read() {
        let total = Rc::new(Cell::new(0));
        let counter = Rc::clone(&total);
        let bytes = io::Cursor::new(TEXT.to_vec());
        let source = LineSource::new(bytes, move |n| counter.set(counter.get() + n)).unwrap();
        assert_eq!(source.count(), 3);
        assert_eq!(total.get(), TEXT.len() as u64);
    }
}
