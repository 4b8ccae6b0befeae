//! Times for people, in UTC or in the time zone of the machine.

use std::sync::LazyLock;

use jiff::tz::TimeZone;
use prost_types::Timestamp;
use time::{OffsetDateTime, UtcOffset, macros::format_description};

use crate::json::moment;
use treering_domain::TimestampMicros;

/// `TZ`, else the system's zone; `None` if unknown. Read once.
static OF_MACHINE: LazyLock<Option<TimeZone>> = LazyLock::new(|| TimeZone::try_system().ok());

/// The time zone in which times are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zone {
    /// UTC without a suffix: for files, other programs, and pages that name the zone elsewhere.
    #[default]
    Utc,
    /// The machine's zone, with the offset after the time. Falls back to UTC (`Z`) if unknown.
    OfMachine,
    /// The machine's zone, for places that already show the offset.
    OfMachineUnnamed,
}

impl Zone {
    /// Returns the same zone without the offset, for places that already show it.
    #[must_use]
    pub fn unnamed(self) -> Self {
        match self {
            Self::Utc => Self::Utc,
            Self::OfMachine | Self::OfMachineUnnamed => Self::OfMachineUnnamed,
        }
    }

    /// Returns how long ago a time was: `just now`, `5 min ago`, `3 days ago`; after a week, the
    /// date.
    #[must_use]
    pub fn ago(self, time: Option<&Timestamp>) -> String {
        let nanoseconds = i128::from(TimestampMicros::now().0) * 1_000;
        let now = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds);
        match (now, time.and_then(|time| self.there(time))) {
            (Ok(now), Some(then)) => before(now, then),
            _ => "-".into(),
        }
    }

    /// Returns the time of day, to the millisecond.
    #[must_use]
    pub fn clock(self, time: Option<&Timestamp>) -> String {
        let Some(then) = time.and_then(|time| self.there(time)) else {
            return "--:--:--.---".into();
        };
        let format = format_description!("[hour]:[minute]:[second].[subsecond digits:3]");
        let clock = then.format(&format).unwrap_or_default();
        clock + &self.name(then)
    }

    /// Returns the date; empty when the time is not known.
    #[must_use]
    pub fn day(self, time: Option<&Timestamp>) -> String {
        let Some(then) = time.and_then(|time| self.there(time)) else {
            return String::new();
        };
        match self.name(then) {
            name if name.is_empty() => date(then),
            name => format!("{} {name}", date(then)),
        }
    }

    /// Returns the date and time, to the second.
    #[must_use]
    pub fn day_clock(self, time: Option<&Timestamp>) -> String {
        let Some(then) = time.and_then(|time| self.there(time)) else {
            return "-".into();
        };
        let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
        let text = then.format(&format).unwrap_or_default();
        text + &self.name(then)
    }

    /// Returns the date and time for use in a sentence. Unlike the other methods, it also marks UTC
    /// times as such.
    #[must_use]
    pub fn moment(self, time: &Timestamp) -> String {
        let text = self.day_clock(Some(time));
        match self {
            Self::Utc => text + " UTC",
            Self::OfMachine | Self::OfMachineUnnamed => text,
        }
    }

    fn there(self, time: &Timestamp) -> Option<OffsetDateTime> {
        let utc = moment(time)?;
        match self {
            Self::Utc => Some(utc),
            Self::OfMachine | Self::OfMachineUnnamed => Some(in_zone(utc, OF_MACHINE.as_ref())),
        }
    }

    /// Returns the offset to show after a time; empty unless the zone is [`Self::OfMachine`].
    fn name(self, then: OffsetDateTime) -> String {
        if self != Self::OfMachine {
            return String::new();
        }
        let (hours, minutes, seconds) = then.offset().as_hms();
        if (hours, minutes, seconds) == (0, 0, 0) {
            return "Z".into();
        }
        let sign = if then.offset().is_negative() {
            '-'
        } else {
            '+'
        };
        format!("{sign}{:02}:{:02}", hours.abs(), minutes.abs())
    }
}

/// Converts a time to a zone, with the offset that the zone had at that time. Stays in UTC if the
/// zone is unknown.
fn in_zone(utc: OffsetDateTime, zone: Option<&TimeZone>) -> OffsetDateTime {
    let offset = || {
        let then = jiff::Timestamp::from_second(utc.unix_timestamp()).ok()?;
        UtcOffset::from_whole_seconds(zone?.to_offset(then).seconds()).ok()
    };
    // The local time may lie beyond the last representable year.
    let there = |offset| utc.checked_to_offset(offset);
    offset().and_then(there).unwrap_or(utc)
}

fn date(then: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day]");
    then.format(&format).unwrap_or_else(|_| "-".into())
}

fn before(now: OffsetDateTime, then: OffsetDateTime) -> String {
    let seconds = (now - then).whole_seconds();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let some = |number: i64, one: &str, many: &str| {
        format!("{number} {} ago", if number == 1 { one } else { many })
    };
    match seconds {
        0..60 => "just now".into(),
        60..3_600 => some(minutes, "min", "min"),
        3_600..86_400 => some(hours, "h", "h"),
        86_400..604_800 => some(days, "day", "days"),
        _ => date(then),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// People think in "3 days ago", but only for the recent past.
    #[test]
    fn recent_times_are_relative() {
        let now = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        for (seconds, text) in [
            (0, "just now"),
            (60, "1 min ago"),
            (7_200, "2 h ago"),
            (86_400, "1 day ago"),
            (6 * 86_400, "6 days ago"),
            (30 * 86_400, "2023-10-15"),
            (-600, "2023-11-14"),
        ] {
            assert_eq!(before(now, now - time::Duration::seconds(seconds)), text);
        }
    }

    // Each time has the offset of its own date: summer and winter differ. Times for files and pages
    // stay in UTC.
    #[test]
    fn times_use_the_offset_of_their_date() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = |text: &str| {
            use time::format_description::well_known::Rfc3339;
            let utc = OffsetDateTime::parse(text, &Rfc3339).unwrap();
            let there = in_zone(utc, Some(&zone));
            let clock = there.format(&Rfc3339).unwrap();
            clock + " " + &Zone::OfMachine.name(there)
        };
        assert_eq!(
            at("2026-01-31T23:30:00Z"),
            "2026-02-01T00:30:00+01:00 +01:00"
        );
        assert_eq!(
            at("2026-07-31T23:30:00Z"),
            "2026-08-01T01:30:00+02:00 +02:00"
        );
        let utc = OffsetDateTime::UNIX_EPOCH;
        assert_eq!(Zone::OfMachine.name(in_zone(utc, None)), "Z");
        assert_eq!(Zone::OfMachine.unnamed().name(utc), "");
        // No local time exists after the last representable year.
        let last = OffsetDateTime::parse(
            "9999-12-31T23:30:00Z",
            &time::format_description::well_known::Rfc3339,
        );
        assert_eq!(in_zone(last.unwrap(), Some(&zone)), last.unwrap());
        let epoch = Timestamp::default();
        assert_eq!(Zone::Utc.day_clock(Some(&epoch)), "1970-01-01 00:00:00");
        assert_eq!(Zone::Utc.clock(Some(&epoch)), "00:00:00.000");
        assert_eq!(Zone::Utc.clock(None), "--:--:--.---");
        assert_eq!(Zone::Utc.day(None), "");
    }
}
