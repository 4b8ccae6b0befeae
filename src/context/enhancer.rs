//! The pipeline: ordered, named steps that make a draft out of a window.

use std::fmt;

use super::{draft::Draft, explain::EnhancerReport, policy::ContextPolicy, window::WindowInput};

/// A step of the pipeline: a pure function of the window and the policy that
/// changes the draft.
pub trait Enhancer: fmt::Debug + Send + Sync {
    /// Its name in policies and explanations, in snake case.
    fn name(&self) -> &str;

    /// Changes the draft, and says what it did.
    fn enhance(
        &self,
        window: &WindowInput,
        policy: &ContextPolicy,
        draft: &mut Draft,
    ) -> EnhancerReport;
}
