//! The known files. A call may name a file by its absolute path or by paths relative to the working
//! directory; all these names belong to one entry.

use std::{collections::HashMap, sync::Arc};

use super::{
    file_effects::{FileEffect, and_then},
    fold::ITEM_BYTES,
    read::{below, is_rooted},
};
use treering_context::steps;
use treering_domain::EventRef;

/// Maximum number of files with the same last component that a name is compared with, newest first.
const SAME_LAST_MAX: usize = 64;

/// A file that a result named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// The path in the first result, or the absolute path once it is known.
    pub path: Arc<str>,
    /// The absolute path, if it is known or follows from the working directory.
    pub absolute: Option<Arc<str>>,
    /// The first result that named it.
    pub event: EventRef,
    /// The tool of that result.
    pub tool: Arc<str>,
    /// Its last effect.
    pub touch: FileEffect,
    /// Number of the last result that named or used it.
    pub(super) recency: u64,
    /// Number of the last result whose call named it; 0 if none did.
    pub(super) used: u64,
}

impl KnownFile {
    /// Whether it was not deleted.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.touch != FileEffect::Deleted
    }
}

/// Files in the order in which they were first seen, with an index of all their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FileTable {
    files: Vec<KnownFile>,
    /// Index by absolute path, or by relative path while the absolute path is not known.
    places: HashMap<Arc<str>, usize>,
    /// Index by the last component of the path.
    by_last: HashMap<Arc<str>, Vec<usize>>,
    /// The directory at which relative paths were found to start, if no working directory is known.
    root: Option<Arc<str>>,
}

impl FileTable {
    pub(super) fn all(&self) -> &[KnownFile] {
        &self.files
    }

    /// Returns the directory at which relative paths were found to start.
    pub(super) fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    /// Returns the index of a file by one of its names; `directory` is the working directory.
    pub(super) fn find(&self, path: &str, directory: Option<&str>) -> Option<usize> {
        let absolute = absolute(path, directory);
        let by_absolute = absolute.as_deref().and_then(|path| self.places.get(path));
        if let Some(place) = by_absolute.or_else(|| self.places.get(path)) {
            return Some(*place);
        }
        // One of the names may be relative to a directory that was not known. A name without a
        // folder is too ambiguous.
        let mut same = self.with_last(path).filter(|place| {
            let known = &self.files[*place];
            match is_rooted(path) {
                true => {
                    known.absolute.is_none()
                        && known.path.contains('/')
                        && ends_with_components(path, &known.path)
                }
                false => {
                    absolute.is_none()
                        && path.contains('/')
                        && ends_with_components(&known.path, path)
                }
            }
        });
        let first = same.next();
        first.filter(|_| same.next().is_none())
    }

    /// Returns the index of the file that is shown with this path, whatever it is relative to.
    pub(super) fn shown_as(&self, path: &str) -> Option<usize> {
        let mut named = self.with_last(path);
        named.find(|place| *self.files[*place].path == *path)
    }

    /// Returns the most recent file that was not deleted and whose path ends with these components.
    pub(super) fn newest_ending_with(&self, name: &str) -> Option<usize> {
        let named = self.with_last(name).filter(|place| {
            let known = &self.files[*place];
            known.is_there() && ends_with_components(&known.path, name)
        });
        named.max_by_key(|place| self.files[*place].recency)
    }

    /// Adds a file. The caller then records its name with [`Self::name`].
    pub(super) fn add(
        &mut self,
        path: &str,
        event: EventRef,
        tool: &Arc<str>,
        touch: FileEffect,
        result: u64,
    ) -> usize {
        let place = self.files.len();
        self.by_last
            .entry(last_component(path).into())
            .or_default()
            .push(place);
        self.files.push(KnownFile {
            path: path.into(),
            absolute: None,
            event,
            tool: Arc::clone(tool),
            touch,
            recency: result,
            used: 0,
        });
        place
    }

    /// Records a name of a file. Returns the memory used, in bytes.
    pub(super) fn name(&mut self, place: usize, path: &str, directory: Option<&str>) -> usize {
        let known = &mut self.files[place];
        let mut bytes = 0;
        if is_rooted(path) && *known.path != *path {
            let start = path.strip_suffix(&*known.path);
            let start = start.map(|start| start.trim_end_matches('/'));
            let is_new = known.absolute.is_none() && directory.is_none();
            if let Some(root) = start.filter(|root| is_new && is_rooted(root)) {
                bytes += self.begin_at(root);
            }
            let known = &mut self.files[place];
            self.places.remove(&known.path);
            known.path = path.into();
        }
        match absolute(path, directory) {
            Some(absolute) => bytes + self.set_absolute(place, absolute),
            None => {
                self.places.entry(path.into()).or_insert(place);
                bytes
            }
        }
    }

    /// Resolves all relative paths against a directory. Returns the memory used by the absolute
    /// paths, in bytes.
    pub(super) fn begin_at(&mut self, directory: &str) -> usize {
        self.root = Some(directory.into());
        let mut bytes = 0;
        for place in 0..self.files.len() {
            steps::note(1);
            let known = &self.files[place];
            if known.absolute.is_none()
                && let Some(absolute) = absolute(&known.path, Some(directory))
                && !self.places.contains_key(absolute.as_str())
            {
                bytes += self.set_absolute(place, absolute);
            }
        }
        bytes
    }

    fn set_absolute(&mut self, place: usize, absolute: String) -> usize {
        let known = &mut self.files[place];
        if known.absolute.as_deref() == Some(absolute.as_str()) {
            return 0;
        }
        if known.absolute.is_none() {
            self.places.remove(&known.path);
        }
        let absolute: Arc<str> = absolute.into();
        let bytes = absolute.len() + ITEM_BYTES;
        known.absolute = Some(Arc::clone(&absolute));
        self.places.insert(absolute, place);
        bytes
    }

    /// Records that a call named the file.
    pub(super) fn note_use(&mut self, place: usize, result: u64) {
        self.files[place].recency = result;
        self.files[place].used = result;
    }

    /// Records the effect of a call on the file, or that its result named it.
    pub(super) fn note_effect(&mut self, place: usize, touch: FileEffect, result: u64) {
        let known = &mut self.files[place];
        known.recency = result;
        known.touch = and_then(known.touch, touch);
    }

    fn with_last(&self, path: &str) -> impl Iterator<Item = usize> {
        let places = self.by_last.get(last_component(path));
        let newest = places.into_iter().flatten().rev().take(SAME_LAST_MAX);
        newest.copied().inspect(|_| steps::note(1))
    }
}

/// Returns the absolute path, if the path is absolute or the working directory is known.
fn absolute(path: &str, directory: Option<&str>) -> Option<String> {
    let root = directory.filter(|directory| is_rooted(directory));
    match (is_rooted(path), root) {
        (true, _) => Some(path.to_owned()),
        (false, Some(root)) => Some(below(Some(root), path)),
        (false, None) => None,
    }
}

fn last_component(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Whether a path ends with all components of another path.
fn ends_with_components(path: &str, end: &str) -> bool {
    let before = path.strip_suffix(end);
    before.is_some_and(|before| before.is_empty() || before.ends_with(['/', '\\']))
}
