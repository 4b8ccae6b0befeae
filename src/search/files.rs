//! Records which files the index consists of.
//!
//! Each segment file has its own checksum, but tantivy does not know which file belongs to which
//! segment: it accepts a valid file of another index, and searches then silently miss hits. Segment
//! files never change once committed, so their lengths and last bytes (which hold the checksums)
//! are recorded in a list and compared when the index is opened.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use tantivy::index::{SegmentId, SegmentMeta};

/// Name of the list of files.
const LIST: &str = "files";
/// Bytes compared at a file's end; tantivy's footer is shorter.
const END_BYTES: u64 = 128;

/// Recorded files: name to length and hash.
pub(super) type RecordedFiles = BTreeMap<String, String>;

/// Records the files of committed segments. Files already recorded are not read again.
///
/// # Errors
/// The system's error. The index is still valid: a file that is not in the list is trusted.
pub(super) fn note(
    dir: &Path,
    segments: &[SegmentMeta],
    noted: &mut RecordedFiles,
) -> io::Result<()> {
    let mut now = RecordedFiles::new();
    for name in files_of(dir, segments)? {
        let said = match noted.get(&name) {
            Some(said) => said.clone(),
            None => describe(&dir.join(&name))?,
        };
        now.insert(name, said);
    }
    if now != *noted {
        let lines = now.iter().map(|(name, said)| format!("{name} {said}\n"));
        let text: String = lines.collect();
        let check = blake3::hash(text.as_bytes()).to_hex();
        // A partly written list does not match its checksum and is ignored.
        fs::write(dir.join(LIST), format!("{text}{check}\n"))?;
        *noted = now;
    }
    Ok(())
}

/// Returns a file of these segments that differs from its record, or `None` when all recorded files
/// match.
pub(super) fn find_changed_file(dir: &Path, segments: &[SegmentMeta]) -> Option<String> {
    let noted = read(dir)?;
    let mut names = files_of(dir, segments).ok()?.into_iter();
    names.find(|name| {
        let said = noted.get(name);
        said.is_some_and(|said| describe(&dir.join(name)).is_ok_and(|found| found != *said))
    })
}

/// Returns a file that is named like a segment's file and is not in `current`.
///
/// # Errors
/// The system's error.
pub(super) fn find_other_file(
    dir: &Path,
    current: &HashSet<PathBuf>,
) -> io::Result<Option<String>> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let id = text.split('.').next().unwrap_or_default();
        let is_of_segment = SegmentId::from_uuid_string(id).is_ok();
        if is_of_segment && !current.contains(Path::new(&name)) {
            return Ok(Some(text.into_owned()));
        }
    }
    Ok(None)
}

/// Returns the files of these segments, which are named after the segment ids.
fn files_of(dir: &Path, segments: &[SegmentMeta]) -> io::Result<Vec<String>> {
    let ids = segments.iter().map(|segment| segment.id().uuid_string());
    let ids: HashSet<String> = ids.collect();
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let id = name.split('.').next();
        if id.is_some_and(|id| ids.contains(id)) {
            names.push(name);
        }
    }
    Ok(names)
}

fn read(dir: &Path) -> Option<RecordedFiles> {
    let text = fs::read_to_string(dir.join(LIST)).ok()?;
    let (lines, check) = text.trim_end().rsplit_once('\n')?;
    let lines = format!("{lines}\n");
    if blake3::hash(lines.as_bytes()).to_hex().as_str() != check {
        return None;
    }
    let pair = |line: &str| {
        let (name, said) = line.split_once(' ')?;
        Some((name.to_owned(), said.to_owned()))
    };
    lines.lines().map(pair).collect()
}

/// Returns the file's length and a hash of its end.
fn describe(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(END_BYTES)))?;
    let mut end = Vec::new();
    file.take(END_BYTES).read_to_end(&mut end)?;
    let hash = blake3::hash(&end).to_hex();
    Ok(format!("{bytes} {}", &hash[..16]))
}
