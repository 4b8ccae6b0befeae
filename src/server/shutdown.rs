//! The phase of a shutdown, and waiting for it. Does not know gRPC.

use tokio::sync::watch;

/// The phases of a server's life, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepts calls.
    Serving,
    /// Accepts no new calls and finishes accepted ones. Endless ones (subscriptions, waits) are
    /// ended now.
    Draining,
    /// The grace period is over: every stream ends.
    Cut,
}

/// Advances the phase.
#[derive(Debug)]
pub(crate) struct Stopper(watch::Sender<Phase>);

/// Returns the phase, and waits for the next. Clones are cheap.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(watch::Receiver<Phase>);

impl Stopper {
    /// Returns the two halves for a serving server.
    #[must_use]
    pub(crate) fn new() -> (Self, StopSignal) {
        let (sender, receiver) = watch::channel(Phase::Serving);
        (Self(sender), StopSignal(receiver))
    }

    /// Advances to `phase`; never goes back.
    pub(crate) fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }
}

impl StopSignal {
    /// Returns the current phase.
    #[must_use]
    pub(crate) fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Waits until the server is in `phase` or a later one. A dropped stopper counts as the last
    /// phase.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut receiver = self.0.clone();
        // An error means that the stopper is gone, and the server with it.
        let _gone = receiver.wait_for(|now| *now >= phase).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A late signal of an earlier phase must not bring a stopping server back.
    #[tokio::test]
    async fn shutdown_phases_only_go_forward() {
        let (stopper, signal) = Stopper::new();
        assert_eq!(signal.phase(), Phase::Serving);
        stopper.advance(Phase::Cut);
        stopper.advance(Phase::Draining);
        assert_eq!(signal.phase(), Phase::Cut);
        signal.reached(Phase::Draining).await;
    }

    // Nobody must wait forever for a server that is gone.
    #[tokio::test]
    async fn dropped_stopper_ends_every_wait() {
        let (stopper, signal) = Stopper::new();
        drop(stopper);
        signal.reached(Phase::Cut).await;
    }
}
