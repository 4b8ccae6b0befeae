//! Progress of a summariser: a small file that is replaced atomically.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use treering_domain::Namespace;

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// Everything up to this log offset is done.
    offset: u64,
}

const VERSION: u32 = 1;

/// The mark of one namespace.
#[derive(Clone, Debug)]
pub(super) struct MarkFile {
    path: PathBuf,
}

impl MarkFile {
    /// Returns the mark of a namespace, in a folder that is created if missing.
    pub(crate) fn of(dir: &Path, namespace: &Namespace) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        // A namespace is a safe file name: it has only letters, digits, `.`, `_` and `-`.
        let path = dir.join(format!("{}.mark.json", namespace.as_str()));
        Ok(Self { path })
    }

    /// Returns the last written offset; `None` when there is no readable mark.
    pub(crate) fn read(&self) -> Option<u64> {
        let text = fs::read_to_string(&self.path).ok()?;
        let content: Content = serde_json::from_str(&text).ok()?;
        (content.version == VERSION).then_some(content.offset)
    }

    /// Replaces the mark. After a crash, either the old or the new one is there.
    pub(crate) fn write(&self, offset: u64) -> io::Result<()> {
        let content = Content {
            version: VERSION,
            offset,
        };
        let text = serde_json::to_string(&content)?;
        let new = self.path.with_extension("json.new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A half-written mark, or one of another version, must count as none. Then the worker starts
    /// at the end of the log.
    #[test]
    fn mark_file_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let mark = MarkFile::of(&dir.path().join("marks"), &Namespace::default()).unwrap();
        assert_eq!(mark.read(), None);
        for offset in [7, 9] {
            mark.write(offset).unwrap();
            assert_eq!(mark.read(), Some(offset));
        }
        for broken in ["", "{\"offset\":", "{\"version\":2,\"offset\":3}"] {
            fs::write(&mark.path, broken).unwrap();
            assert_eq!(mark.read(), None, "{broken}");
        }
        mark.write(11).unwrap();
        assert_eq!(mark.read(), Some(11));
    }
}
