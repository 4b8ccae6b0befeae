//! Health: what the store can do now, and what damage reads have met. Damage is reported but does
//! not make the store unhealthy: everything intact is served.

use std::sync::atomic::Ordering;

use super::{Engine, Inner, error::ReadError, sequencer::lock};
use treering_domain::with_causes;
use treering_log::WriterHealth;

/// What the store can do now. Each error gives the reason, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The threads that write and publish are running and not stuck. If not, only a restart helps;
    /// reads may continue.
    pub live: Result<(), String>,
    /// A new append can be expected to succeed, and the disk has room
    /// ([`Limits::disk_floor_bytes`](treering_domain::Limits::disk_floor_bytes)). If not, reads
    /// continue, and appends may recover without intervention.
    pub ready: Result<(), String>,
}

/// Damage that reads have met since the store was opened.
#[derive(Clone, Debug)]
pub struct DamageMet {
    /// Number of reads that met damage; the same damage counts each time.
    pub reads: u64,
    /// The first damage met.
    pub first: ReadError,
}

impl Engine {
    /// Returns the store's health.
    #[must_use]
    pub fn health(&self) -> Health {
        let WriterHealth { live, ready } = self.inner.appends.writer.health();
        if self.inner.closing.load(Ordering::Acquire) {
            let ready = Err("the engine is shutting down".to_owned());
            return Health { live, ready };
        }
        let ready = ready.and_then(|()| self.has_room());
        Health { live, ready }
    }

    /// Checks that the disk has its minimum of free space.
    ///
    /// # Errors
    /// When the disk has less.
    fn has_room(&self) -> Result<(), String> {
        if self.inner.options.mode.is_read_only() {
            return Ok(());
        }
        let Some(disk) = self.disk_space() else {
            return Ok(());
        };
        let floor = self.floor_of(disk);
        if disk.free_bytes >= floor {
            return Ok(());
        }
        let mebibytes = |bytes: u64| bytes >> 20;
        Err(format!(
            "the disk has {} MiB free, the minimum is {} MiB: free some space, or enlarge the disk",
            mebibytes(disk.free_bytes),
            mebibytes(floor)
        ))
    }

    /// Returns the damage that reads have met since the store was opened, if any.
    /// [`Engine::verify`] searches for more.
    #[must_use]
    pub fn damage_met(&self) -> Option<DamageMet> {
        lock(&self.inner.upkeep.damaged).clone()
    }
}

impl Inner {
    /// Records damage for later reports.
    pub(super) fn record_damage(&self, error: &ReadError) {
        if matches!(error, ReadError::Damaged { .. }) {
            tracing::error!(error = %with_causes(&error), "a read met damaged data");
            lock(&self.upkeep.damaged)
                .get_or_insert_with(|| DamageMet {
                    reads: 0,
                    first: error.clone(),
                })
                .reads += 1;
        }
    }
}
