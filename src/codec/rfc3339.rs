//! Times as people and JSON write them: RFC 3339, in UTC.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::domain::TimestampMicros;

/// A time as text; none for one of no four-digit year.
#[must_use]
pub fn text(time: TimestampMicros) -> Option<String> {
    let nanos = i128::from(time.0) * 1_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
    time.format(&Rfc3339).ok()
}

/// The time that a text says, to the microsecond before it.
#[must_use]
pub fn read(text: &str) -> Option<TimestampMicros> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    let micros = time.unix_timestamp_nanos().div_euclid(1_000);
    i64::try_from(micros).ok().map(TimestampMicros)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A time in a file of keys or a receipt that is read back as another one is a lie in it.
    #[test]
    fn times_are_read_back() {
        for micros in [0, -1, 1_790_000_000_123_456, TimestampMicros::LAST.0] {
            let time = TimestampMicros(micros);
            let text = text(time).unwrap();
            assert_eq!(read(&text), Some(time), "{text}");
        }
        assert_eq!(text(TimestampMicros(i64::MAX)), None);
        assert_eq!(read("yesterday"), None);
    }
}
