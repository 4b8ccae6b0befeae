//! Following: a continuous backup, which is retried when it fails.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    error::BackupError,
    run::{Backup, BackupOptions, BackupStep},
    source::BackupSource,
};
use treering_domain::with_causes;
use treering_objects::ObjectStorage;

/// First and longest pause before a failed backup is retried.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Two continuous backups to the same target overtake each other. A backup stops when it was
/// overtaken this many times within [`OVERTAKEN_WITHIN`].
const OVERTAKEN_MAX: usize = 3;
const OVERTAKEN_WITHIN: Duration = Duration::from_secs(60);

/// Follows a store. After a failure, the backup is retried from the current state of the target.
///
/// # Errors
/// Errors that a retry cannot resolve: the target's backup is damaged or was written with another
/// key, or another continuous backup writes to the same target.
pub async fn follow(
    source: &dyn BackupSource,
    target: &ObjectStorage,
    options: &BackupOptions,
    mut report: impl FnMut(BackupStep),
) -> Result<(), BackupError> {
    let options = BackupOptions {
        follow: true,
        ..options.clone()
    };
    let mut was_there = source.was_backed_up_to(target.address()).await;
    let mut pause = RETRY_MIN;
    let mut overtaken: Vec<Instant> = Vec::new();
    loop {
        let mut is_new = false;
        let error = match Backup::start_at(source, target, &options, was_there).await {
            Ok(mut backup) => {
                let ran = backup.run(|step| {
                    is_new |= matches!(step, BackupStep::Generation { .. });
                    report(step);
                });
                match ran.await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        match &error {
            BackupError::Overtaken { .. } => {
                overtaken.retain(|at| at.elapsed() < OVERTAKEN_WITHIN);
                overtaken.push(Instant::now());
                if overtaken.len() >= OVERTAKEN_MAX {
                    return Err(error);
                }
            }
            BackupError::Target { .. }
            | BackupError::Source { .. }
            | BackupError::Gone { .. }
            | BackupError::Internal { .. } => {}
            _ => return Err(error),
        }
        was_there |= is_new;
        let error = with_causes(&error).to_string();
        tracing::warn!(error, "the backup failed; retrying");
        if is_new {
            pause = RETRY_MIN;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}
