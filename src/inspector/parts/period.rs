//! The period of a page: the parameters `since` and `until`.

use maud::{Markup, html};
use prost_types::Timestamp;

use crate::{failure::PageFailure, request_context::PageQuery};
use treering_present::time_arg::TimeRange;

/// A period. Without bounds it is all time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Period {
    from: Option<Timestamp>,
    /// Inclusive.
    to: Option<Timestamp>,
}

impl Period {
    /// Reads `since` and `until` from the address of a page.
    ///
    /// # Errors
    /// If one of them is not a time, or the period is empty.
    pub(crate) fn of(asked: &PageQuery) -> Result<Self, PageFailure> {
        let time = |name: &str, refused: &str| {
            let time = asked.text(name).map(str::parse::<TimeRange>).transpose();
            time.map_err(|takes| PageFailure::asked(refused, takes))
        };
        let since = time("since", "`since` is invalid")?;
        let until = time("until", "`until` is invalid")?;
        if let (Some(since), Some(until)) = (since, until)
            && since.is_after(until)
        {
            return Err(PageFailure::asked(
                "the period is empty: `since` is after `until`",
                "exchange them",
            ));
        }
        Ok(Self {
            from: since.map(TimeRange::beginning),
            to: until.map(TimeRange::end),
        })
    }

    /// True if there is a bound.
    #[must_use]
    pub(crate) fn is_bounded(&self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// Returns the first moment.
    #[must_use]
    pub(crate) fn from(&self) -> Option<Timestamp> {
        self.from
    }

    /// True if a time is in the period.
    #[must_use]
    pub(crate) fn has(&self, time: &Timestamp) -> bool {
        let order = |time: &Timestamp| (time.seconds, time.nanos);
        self.from.is_none_or(|from| order(&from) <= order(time))
            && self.to.is_none_or(|to| order(time) <= order(&to))
    }
}

/// Renders the two fields of a filter form.
#[must_use]
pub(crate) fn fields(asked: &PageQuery) -> Markup {
    let value = |name| asked.text(name).unwrap_or_default();
    html! {
        label { "Since"
            input name="since" value=(value("since")) size="11" autocomplete="off" placeholder="2 days";
        }
        label { "Until"
            input name="until" value=(value("until")) size="11" autocomplete="off" placeholder="2026-01-31";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    // A day named as the end of a period belongs to it.
    #[test]
    fn period_has_its_last_day() {
        let period = Period::of(&PageQuery::of("since=2026-01-30&until=2026-01-31")).unwrap();
        let day = 86_400;
        let first = 1_769_731_200; // 2026-01-30
        assert!(!period.has(&at(first - 1)));
        assert!(period.has(&at(first)) && period.has(&at(first + 2 * day - 1)));
        assert!(!period.has(&at(first + 2 * day)));
        assert!(Period::of(&PageQuery::of("")).unwrap().has(&at(0)));
        for wrong in ["since=2026-02-01&until=2026-01-31", "until=soon"] {
            assert!(Period::of(&PageQuery::of(wrong)).is_err(), "{wrong}");
        }
    }
}
