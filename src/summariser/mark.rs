//! How far a summariser is: a small file that is replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::domain::Namespace;

/// What the file holds.
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
    /// The mark of a namespace, in a folder that is made if it is not there.
    pub fn of(dir: &Path, namespace: &Namespace) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        // Namespaces have letters, digits, `.`, `_` and `-` only.
        let path = dir.join(format!("{}.mark.json", namespace.as_str()));
        Ok(Self { path })
    }

    /// The offset that was written last; none when there is none, or none that
    /// can be read.
    pub fn read(&self) -> Option<u64> {
        let text = fs::read_to_string(&self.path).ok()?;
        let content: Content = serde_json::from_str(&text).ok()?;
        (content.version == VERSION).then_some(content.offset)
    }

    /// Replaces the mark. A crash leaves the old one or the new one.
    pub fn write(&self, offset: u64) -> io::Result<()> {
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

    /// A mark that was half written or is of another version is no mark; work is
    /// then looked for from the end of the log on.
    #[test]
    fn marks_are_replaced_as_a_whole() {
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
