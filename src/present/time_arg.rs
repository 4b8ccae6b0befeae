//! Parses times on the command line: `2 days`, `3h ago`, `yesterday`, `2026-01-31`, `2026-01-31
//! 08:00`, or RFC 3339.

use std::{str::FromStr, time::Duration};

use prost_types::Timestamp;
use time::{
    Date, OffsetDateTime, PrimitiveDateTime, format_description::well_known::Rfc3339,
    macros::format_description,
};

use treering_domain::TimestampMicros;

const MICROS: i64 = 1_000_000;
/// A day in UTC, in microseconds. Dates in output are UTC days too.
const DAY_MICROS: i64 = 86_400 * MICROS;

/// A parsed time: an instant, or a day or month with its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    from: TimestampMicros,
    /// The last microsecond, inclusive.
    to: TimestampMicros,
}

impl TimeRange {
    /// Returns the start as a protobuf timestamp.
    #[must_use]
    pub fn beginning(self) -> Timestamp {
        wire(self.from)
    }

    /// Returns the end. It is inclusive: "until" a day includes that day.
    #[must_use]
    pub fn end(self) -> Timestamp {
        wire(self.to)
    }

    /// True when the range from `self` to `other` is empty.
    #[must_use]
    pub fn is_after(self, other: Self) -> bool {
        self.from.0 > other.to.0
    }
}

/// True for a time in the future.
#[must_use]
pub fn is_to_come(time: &Timestamp) -> bool {
    time.seconds > TimestampMicros::now().0.div_euclid(MICROS)
}

fn wire(time: TimestampMicros) -> Timestamp {
    Timestamp {
        seconds: time.0.div_euclid(MICROS),
        nanos: i32::try_from(time.0.rem_euclid(MICROS) * 1_000).unwrap_or(0),
    }
}

impl FromStr for TimeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        at(text, TimestampMicros::now()).ok_or_else(|| {
            "takes a duration before now (`2 days`, `3h`, `last week`), a day \
             (`2026-01-31`, `today`, `yesterday`), a month (`2026-01`), or a time \
             (`2026-01-31 08:00`, UTC, or in RFC 3339)"
                .to_owned()
        })
    }
}

fn at(text: &str, now: TimestampMicros) -> Option<TimeRange> {
    let text = text.trim();
    let moment = |micros: i64| TimeRange {
        from: TimestampMicros(micros),
        to: TimestampMicros(micros),
    };
    if let Some(passed) = passed(text) {
        return Some(moment(now.0.checked_sub(passed)?));
    }
    let days_ago = match text {
        "now" => return Some(moment(now.0)),
        "today" => Some(0),
        "yesterday" => Some(1),
        _ => None,
    };
    if let Some(days) = days_ago {
        let from = (now.0.div_euclid(DAY_MICROS) - days) * DAY_MICROS;
        return Some(until_before(from, from + DAY_MICROS));
    }
    if let Ok(day) = Date::parse(text, format_description!("[year]-[month]-[day]")) {
        return Some(until_before(midnight(day)?, midnight(day.next_day()?)?));
    }
    // A month is parsed as its first day.
    if let Ok(first) = Date::parse(
        &format!("{text}-01"),
        format_description!("[year]-[month]-[day]"),
    ) {
        let in_next = first.checked_add(time::Duration::days(31))?;
        let next = in_next.replace_day(1).ok()?;
        return Some(until_before(midnight(first)?, midnight(next)?));
    }
    micros(time_of_day(text)?).map(moment)
}

/// Parses `2026-01-31 08:00`, with or without seconds; UTC when no zone is given.
fn time_of_day(text: &str) -> Option<OffsetDateTime> {
    // Accepts a space instead of `T`, because times are printed that way.
    if let Ok(time) = OffsetDateTime::parse(&text.replacen(' ', "T", 1), &Rfc3339) {
        return Some(time);
    }
    let utc = text.replacen('T', " ", 1);
    let utc = utc.trim_end_matches(['Z', 'z']).trim_end();
    let seconds = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    let minutes = format_description!("[year]-[month]-[day] [hour]:[minute]");
    let read = PrimitiveDateTime::parse(utc, seconds);
    let read = read.or_else(|_| PrimitiveDateTime::parse(utc, minutes));
    read.ok().map(PrimitiveDateTime::assume_utc)
}

fn midnight(day: Date) -> Option<i64> {
    micros(day.midnight().assume_utc())
}

fn micros(time: OffsetDateTime) -> Option<i64> {
    i64::try_from(time.unix_timestamp_nanos() / 1_000).ok()
}

fn until_before(from: i64, next: i64) -> TimeRange {
    TimeRange {
        from: TimestampMicros(from),
        to: TimestampMicros(next - 1),
    }
}

/// Parses `2 days`, `90m`, `1 week ago`, `last week`, and returns microseconds.
fn passed(text: &str) -> Option<i64> {
    if let Some(unit) = text.strip_prefix("last ") {
        return passed(&format!("1 {}", unit.trim()));
    }
    let text = text.strip_suffix("ago").unwrap_or(text).trim();
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let number: i64 = text[..end].parse().ok()?;
    let seconds = match text[end..].trim() {
        "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        "month" | "months" => 30 * 86_400,
        "y" | "year" | "years" => 365 * 86_400,
        _ => return None,
    };
    number.checked_mul(seconds)?.checked_mul(MICROS)
}

/// Parses a duration: `10s`, `500ms`, `2 min`; a plain number is in seconds.
///
/// # Errors
/// A message that says what is accepted.
pub fn length(text: &str) -> Result<Duration, String> {
    let takes = || "takes a duration: 10s, 500ms, 2 min".to_owned();
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| takes())?;
    let milliseconds: u64 = match text[end..].trim() {
        "ms" => 1,
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        _ => return Err(takes()),
    };
    let all = number.checked_mul(milliseconds).ok_or_else(takes)?;
    Ok(Duration::from_millis(all))
}

/// Parses a long duration: `90d`, `12h`, `2 weeks`.
///
/// # Errors
/// A message that says what is accepted.
pub fn term(text: &str) -> Result<Duration, String> {
    let takes = || "takes a duration: 90d, 12h, 30min, 2 weeks, 0s".to_owned();
    let text = text.trim();
    let micros = passed(text).filter(|_| text.starts_with(|c: char| c.is_ascii_digit()));
    let micros = micros.and_then(|micros| u64::try_from(micros).ok());
    micros.map(Duration::from_micros).ok_or_else(takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Users remember "two days ago"; a wrong interpretation would hide what they look for.
    #[test]
    fn relative_and_absolute_times_are_parsed() {
        let now = TimestampMicros(1_000_000 * MICROS);
        let read = |text| at(text, now).map(|time| time.from.0 / MICROS);
        assert_eq!(read("2 days"), Some(1_000_000 - 2 * 86_400));
        assert_eq!(read("3h ago"), Some(1_000_000 - 3 * 3_600));
        assert_eq!(read("1 week"), Some(1_000_000 - 7 * 86_400));
        assert_eq!(read("1970-01-02"), Some(86_400));
        assert_eq!(read("now"), Some(1_000_000));
        // 1,000,000 s after the epoch is 13:46:40 on the twelfth day.
        assert_eq!(read("today"), Some(11 * 86_400));
        assert_eq!(read("yesterday"), Some(10 * 86_400));
        assert_eq!(read("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(read("last week"), Some(1_000_000 - 7 * 86_400));
        assert_eq!(read("1970-02"), Some(31 * 86_400));
        for time in [
            "1970-01-02 08:00",
            "1970-01-02 08:00:00",
            "1970-01-02T08:00",
            "1970-01-02 08:00Z",
        ] {
            assert_eq!(read(time), Some(86_400 + 8 * 3_600), "{time}");
        }
        for (text, milliseconds) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("2 min", 120_000),
            ("3", 3_000),
        ] {
            assert_eq!(
                length(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for wrong in ["", "s", "10 moons", "-1s", "99999999999999999999s"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
        for wrong in [
            "",
            "days",
            "2",
            "2 moons",
            "9999999999999999 years",
            "31.1.2026",
            "2026-13",
            "last",
            "last 9999999999999999 years",
            "2026-02-09 25:00",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    // "Until the ninth" excluded the ninth, so a search for one day found nothing. The end of a day
    // or an instant must be inclusive.
    #[test]
    fn end_of_a_period_is_inclusive() {
        let now = TimestampMicros(1_000_000 * MICROS);
        let ends = |text| at(text, now).map(|time| time.to.0 + 1);
        assert_eq!(ends("1970-01-02"), Some(2 * DAY_MICROS));
        assert_eq!(ends("1970-02"), Some(59 * DAY_MICROS));
        assert_eq!(ends("1970-12"), Some(365 * DAY_MICROS));
        assert_eq!(ends("today"), Some(12 * DAY_MICROS));
        assert_eq!(ends("yesterday"), Some(11 * DAY_MICROS));
        assert_eq!(
            ends("1970-01-02 08:00"),
            Some(DAY_MICROS + 8 * 3_600 * MICROS + 1)
        );
        assert_eq!(ends("now"), Some(now.0 + 1));
        let read = |text| at(text, now).unwrap();
        assert!(!read("1970-01-02").is_after(read("1970-01-02")));
        assert!(read("1970-01-03").is_after(read("1970-01-02")));
        assert!(!read("1970-01-02 08:00").is_after(read("1970-01-02")));
    }
}
