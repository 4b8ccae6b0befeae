//! Times on the command line: `2 days`, `3h ago`, `yesterday`, `2026-01-31`, or in
//! RFC 3339.

use std::{str::FromStr, time::Duration};

use prost_types::Timestamp;
use time::{
    Date, OffsetDateTime, format_description::well_known::Rfc3339, macros::format_description,
};

use crate::domain::TimestampMicros;

const MICROS: i64 = 1_000_000;
/// A day of UTC, as days are written elsewhere.
const DAY_MICROS: i64 = 86_400 * MICROS;

/// A moment that was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(TimestampMicros);

impl Moment {
    /// As it goes over the wire.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        Timestamp {
            seconds: self.0.0.div_euclid(MICROS),
            nanos: i32::try_from(self.0.0.rem_euclid(MICROS) * 1_000).unwrap_or(0),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        at(text, TimestampMicros::now()).map(Self).ok_or_else(|| {
            "takes a length of time that has passed (`2 days`, `3h`), a day (`2026-01-31`, \
             `today`, `yesterday`) or a time in RFC 3339"
                .to_owned()
        })
    }
}

fn at(text: &str, now: TimestampMicros) -> Option<TimestampMicros> {
    let text = text.trim();
    if let Some(passed) = passed(text) {
        return Some(TimestampMicros(now.0.checked_sub(passed)?));
    }
    let days_ago = match text {
        "now" => return Some(now),
        "today" => Some(0),
        "yesterday" => Some(1),
        _ => None,
    };
    if let Some(days) = days_ago {
        let today = now.0.div_euclid(DAY_MICROS);
        return Some(TimestampMicros((today - days) * DAY_MICROS));
    }
    let moment = match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(moment) => moment,
        Err(_) => {
            let day = Date::parse(text, format_description!("[year]-[month]-[day]")).ok()?;
            day.midnight().assume_utc()
        }
    };
    i64::try_from(moment.unix_timestamp_nanos() / 1_000)
        .ok()
        .map(TimestampMicros)
}

/// Microseconds of `2 days`, `90m`, `1 week ago`.
fn passed(text: &str) -> Option<i64> {
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

/// A length of time: `10s`, `500ms`, `2 min`; a number alone counts seconds.
///
/// # Errors
/// What it takes.
pub fn length(text: &str) -> Result<Duration, String> {
    let takes = || "takes a length of time: 10s, 500ms, 2 min".to_owned();
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

#[cfg(test)]
mod tests {
    use super::*;

    // "Since two days" is what people know of when something was; a wrong reading
    // would hide what they look for.
    #[test]
    fn times_are_read_as_people_say_them() {
        let now = TimestampMicros(1_000_000 * MICROS);
        let read = |text| at(text, now).map(|time| time.0 / MICROS);
        assert_eq!(read("2 days"), Some(1_000_000 - 2 * 86_400));
        assert_eq!(read("3h ago"), Some(1_000_000 - 3 * 3_600));
        assert_eq!(read("1 week"), Some(1_000_000 - 7 * 86_400));
        assert_eq!(read("1970-01-02"), Some(86_400));
        assert_eq!(read("now"), Some(1_000_000));
        // 13:46:40 on the twelfth day.
        assert_eq!(read("today"), Some(11 * 86_400));
        assert_eq!(read("yesterday"), Some(10 * 86_400));
        assert_eq!(read("1970-01-01T01:00:00+01:00"), Some(0));
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
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
