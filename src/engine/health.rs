//! How the store is: what can be done now, and what damage reads have met.
//! Damage is told and does not make the store unfit: all that is whole is served.

use std::sync::atomic::Ordering;

use super::{Engine, Inner, error::ReadError, sequencer::lock};
use crate::domain::with_causes;
use crate::log::WriterHealth;

/// What can be done now. Each error says why not, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The threads that write and publish run and move. When they do not, only a
    /// restart helps. Reads may go on.
    pub live: Result<(), String>,
    /// An append that comes now can be expected to be taken, and the disk has room
    /// ([`Limits::disk_floor_bytes`](crate::domain::Limits::disk_floor_bytes)). When not,
    /// reads go on, and appends may come back by themselves.
    pub ready: Result<(), String>,
}

/// Damage that reads have met since the store was opened.
#[derive(Clone, Debug)]
pub struct DamageMet {
    /// Reads that met some; the same damage counts each time.
    pub reads: u64,
    /// The first of it.
    pub first: ReadError,
}

impl Engine {
    /// What can be done now.
    #[must_use]
    pub fn health(&self) -> Health {
        let WriterHealth { live, ready } = self.inner.writer.health();
        if self.inner.closing.load(Ordering::Acquire) {
            let ready = Err("the engine is shutting down".to_owned());
            return Health { live, ready };
        }
        let ready = ready.and_then(|()| self.has_room());
        Health { live, ready }
    }

    /// # Errors
    /// When the disk has less room than it should.
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
            "the disk has {} MiB left, and should have {}: free some space, or give it more",
            mebibytes(disk.free_bytes),
            mebibytes(floor)
        ))
    }

    /// Damage that reads have met since the store was opened; none if all that was
    /// read was whole. [`Engine::verify`] looks for more.
    #[must_use]
    pub fn damage_met(&self) -> Option<DamageMet> {
        lock(&self.inner.damaged).clone()
    }
}

impl Inner {
    /// Remembers damage, so that it can be told.
    pub(super) fn noticed(&self, error: &ReadError) {
        if matches!(error, ReadError::Damaged { .. }) {
            tracing::error!(error = %with_causes(&error), "damaged data");
            lock(&self.damaged)
                .get_or_insert_with(|| DamageMet {
                    reads: 0,
                    first: error.clone(),
                })
                .reads += 1;
        }
    }
}
