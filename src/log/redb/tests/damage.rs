//! Flipped bytes in segment files.

use std::path::Path;

use super::*;
use crate::log::samples::Random;

fn segment_paths(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder.join(LOG_FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn a_flipped_byte_is_an_error_and_never_wrong_data() {
    // Wherever it is in a segment file, in frames, in large bodies or in redb's
    // own tree: what is read is right, or an error.
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    {
        let log = RedbLog::open(folder.path(), small()).unwrap();
        for size in [1, 30, 200, 1, 1, 5] {
            let records = samples::records(size, 900);
            append(&log, &records).await.unwrap();
            expected.extend(records);
        }
        log.close().await.unwrap();
    }
    let path = segment_paths(folder.path()).pop().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let mut random = Random(11);
    let mut errors = 0;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // Most of a small file is empty: half of the flips go where something is.
    let used: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    for turn in 0..400 {
        let at = if turn % 2 == 0 {
            used[random.below(used.len() as u64) as usize]
        } else {
            random.below(sound.len() as u64) as usize
        };
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << random.below(8);
        std::fs::write(&path, &damaged).unwrap();
        let read = match RedbLog::open(folder.path(), small()) {
            Ok(log) => all(Arc::new(log)).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(read) => assert!(
                read == expected,
                "byte {at}: {} of {} records, or wrong ones",
                read.len(),
                expected.len()
            ),
            Err(error) => {
                errors += 1;
                assert!(
                    matches!(
                        error,
                        LogError::Damaged { .. } | LogError::NewerFormat { .. } | LogError::Io { .. }
                    ),
                    "byte {at}: {error:?}"
                );
            }
        }
        std::fs::write(&path, &sound).unwrap();
    }
    std::panic::set_hook(hook);
    assert!(errors > 50, "only {errors} flips were noticed");
}
