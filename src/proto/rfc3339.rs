//! Formats and parses times as RFC 3339 text, in UTC.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use treering_domain::TimestampMicros;

/// Formats a time; `None` if its year does not have four digits.
#[must_use]
pub fn text(time: TimestampMicros) -> Option<String> {
    let nanos = i128::from(time.0) * 1_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
    time.format(&Rfc3339).ok()
}

/// Parses a time, rounded down to the microsecond; `None` if it is not RFC 3339.
#[must_use]
pub fn read(text: &str) -> Option<TimestampMicros> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    let micros = time.unix_timestamp_nanos().div_euclid(1_000);
    i64::try_from(micros).ok().map(TimestampMicros)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Key files and receipts contain times: formatting and parsing must not change them.
    #[test]
    fn times_round_trip_as_rfc3339() {
        for micros in [0, -1, 1_790_000_000_123_456, TimestampMicros::LAST.0] {
            let time = TimestampMicros(micros);
            let text = text(time).unwrap();
            assert_eq!(read(&text), Some(time), "{text}");
        }
        assert_eq!(text(TimestampMicros(i64::MAX)), None);
        assert_eq!(read("yesterday"), None);
    }
}
