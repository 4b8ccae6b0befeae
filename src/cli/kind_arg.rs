//! An event kind on the command line.

use clap::builder::PossibleValue;

use treering_domain::EventKind;

/// An event kind on the command line, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KindArg(pub(crate) EventKind);

impl clap::ValueEnum for KindArg {
    fn value_variants<'a>() -> &'a [Self] {
        static KINDS: std::sync::LazyLock<Vec<KindArg>> =
            std::sync::LazyLock::new(|| EventKind::ALL.iter().copied().map(KindArg).collect());
        &KINDS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.as_str()))
    }
}

impl KindArg {
    /// Returns the number on the wire.
    pub(crate) fn number(self) -> i32 {
        i32::from(self.0.number())
    }
}
