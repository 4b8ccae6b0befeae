//! Medians, ratios, and a closed loop that keeps a fixed number of calls in flight.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::failed;
use treering_client::error::ClientError;

/// Returns the median; 0 if there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// Returns the value at a percentile; 0 if there are no values.
#[must_use]
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    // In range: `percent` is at most 100.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let index = (last as f64 * percent / 100.0).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

/// Returns the median of the ratios of both values of each round. Noise that lasts longer than a
/// round cancels out.
#[must_use]
pub fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<_> = ours
        .iter()
        .zip(theirs)
        .map(|(ours, theirs)| ours / theirs)
        .collect();
    median(&ratios)
}

/// Returns the value of a call and the microseconds that it took.
pub async fn timed<T>(call: impl Future<Output = T>) -> (T, f64) {
    let started = Instant::now();
    let value = call.await;
    (value, started.elapsed().as_secs_f64() * 1e6)
}

/// The result of a closed loop.
#[derive(Clone, Copy, Debug)]
pub struct LoopResult {
    /// Completed calls.
    pub calls: u64,
    /// Calls per second.
    pub per_second: f64,
}

/// Keeps `in_flight` calls running for about `time`: each caller calls again as soon as it has its
/// answer. `call` receives the number of its caller.
///
/// # Errors
/// The first error of a call.
pub async fn closed_loop<F, Fut>(
    in_flight: usize,
    time: Duration,
    call: F,
) -> Result<LoopResult, ClientError>
where
    F: Fn(usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<(), ClientError>> + Send,
{
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..in_flight {
        let call = call.clone();
        callers.spawn(async move {
            let mut calls = 0;
            while started.elapsed() < time {
                call(caller).await?;
                calls += 1;
            }
            Ok::<u64, ClientError>(calls)
        });
    }
    let mut calls = 0;
    while let Some(done) = callers.join_next().await {
        calls += done.map_err(|error| failed("calling", error))??;
    }
    Ok(LoopResult {
        calls,
        per_second: calls as f64 / started.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One outlier must not move the median, and an empty list must not panic.
    #[test]
    fn medians_and_percentiles() {
        assert!((median(&[1.0, 900.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((percentile(&[1.0, 2.0, 3.0, 4.0, 5.0], 99.0) - 5.0).abs() < f64::EPSILON);
        assert!(median(&[]).abs() < f64::EPSILON);
        assert!((ratio(&[2.0, 4.0, 900.0], &[1.0, 2.0, 3.0]) - 2.0).abs() < f64::EPSILON);
    }
}
