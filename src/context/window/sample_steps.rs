//! Random steps of histories, for property tests. Separate from `samples`, so that no feature of
//! this crate needs `proptest`. Other crates include this file in their tests.

use proptest::{collection::vec, prelude::*};

use super::SampleStep;

/// Generates the steps of a history, with or without compactions.
pub(super) fn sample_steps(compactions: bool) -> impl Strategy<Value = Vec<SampleStep>> {
    let byte = any::<u8>;
    let compact = move |back| match compactions {
        true => SampleStep::Compact(back),
        false => SampleStep::Summary,
    };
    vec(
        prop_oneof![
            6 => (0..400_u16).prop_map(SampleStep::User),
            8 => (0..400_u16, byte()).prop_map(|(size, id)| SampleStep::Assistant(size, id)),
            1 => Just(SampleStep::System),
            10 => (byte(), any::<bool>()).prop_map(|(id, approval)| SampleStep::Call(id, approval)),
            12 => (byte(), 0..4_000_u16).prop_map(|(id, size)| SampleStep::Result(id, size)),
            2 => byte().prop_map(SampleStep::Failure),
            2 => byte().prop_map(SampleStep::Cancel),
            3 => (byte(), any::<bool>()).prop_map(|(id, yes)| SampleStep::Decide(id, yes)),
            2 => byte().prop_map(SampleStep::Start),
            2 => (byte(), any::<bool>()).prop_map(|(id, known)| SampleStep::ToolMessage(id, known)),
            1 => byte().prop_map(SampleStep::Discover),
            1 => byte().prop_map(SampleStep::Guidance),
            1 => byte().prop_map(SampleStep::Returned),
            1 => byte().prop_map(SampleStep::Set),
            1 => Just(SampleStep::Summary),
            1 => byte().prop_map(SampleStep::Snapshot),
            2 => byte().prop_map(compact),
        ],
        0..60,
    )
}
