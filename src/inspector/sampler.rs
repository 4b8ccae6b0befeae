//! Samples of the store's metrics, every few seconds, for the charts of the store page. A limited
//! number is kept in memory, for the whole store.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::{runtime::Handle, task::spawn_blocking};

use super::bounds::{SAMPLE_EVERY, SAMPLES};
use treering_engine::{Engine, Measures};

/// The last samples, oldest first.
#[derive(Debug, Default)]
pub(crate) struct StoreSamples(Mutex<VecDeque<Arc<Measures>>>);

impl StoreSamples {
    /// Returns all samples.
    #[must_use]
    pub(crate) fn all(&self) -> Vec<Arc<Measures>> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter().cloned().collect()
    }

    fn push(&self, measures: Measures) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Arc::new(measures));
    }
}

/// Takes samples until `samples` is dropped.
pub(crate) async fn sample(engine: Engine, samples: Weak<StoreSamples>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    loop {
        ticks.tick().await;
        // Reading file metrics blocks while the disk is busy.
        let (engine, runtime) = (engine.clone(), Handle::current());
        let measured = spawn_blocking(move || runtime.block_on(engine.measures())).await;
        let Some(samples) = samples.upgrade() else {
            return;
        };
        match measured {
            Ok(Ok(measures)) => samples.push(measures),
            Ok(Err(error)) => tracing::debug!(%error, "the store's figures cannot be read"),
            Err(_) => return,
        }
    }
}
