//! Copies folders, as for a backup. For tests, including those of the whole program.

use std::path::Path;

/// Copies a folder recursively. Files in the target folder that are not overwritten stay.
///
/// # Panics
/// When something cannot be copied.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
