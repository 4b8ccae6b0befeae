//! Checks whether a JSON text keeps its numbers when it is parsed and written again.
//!
//! Parsed values hold 64-bit integers and floats. A number that needs more would change, so its
//! text must be kept.

/// Returns true when every number in this (well-formed) JSON text keeps its value when parsed into
/// 64 bits.
pub(super) fn numbers_survive(json: &str) -> bool {
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at),
            b'-' | b'0'..=b'9' => {
                let end = bytes[at..]
                    .iter()
                    .position(|b| !matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))
                    .map_or(bytes.len(), |length| at + length);
                if !number_survives(&json[at..end]) {
                    return false;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    true
}

/// Returns the index after the string that starts here.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn number_survives(text: &str) -> bool {
    if text.parse::<u64>().is_ok() || (text != "-0" && text.parse::<i64>().is_ok()) {
        return true;
    }
    let Ok(value) = text.parse::<f64>() else {
        return false;
    };
    // Rust formats a float as the shortest text that parses to the same float.
    value.is_finite() && decimal(text) == decimal(&format!("{value:e}"))
}

/// Returns the sign, the digits without leading and trailing zeros, and the power of ten of the
/// last digit.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let trimmed = digits.trim_end_matches('0');
    let exponent = exponent
        .checked_sub(i64::try_from(fraction.len()).ok()?)?
        .checked_add(i64::try_from(digits.len() - trimmed.len()).ok()?)?;
    let significant = trimmed.trim_start_matches('0').to_owned();
    let exponent = if significant.is_empty() { 0 } else { exponent };
    Some((negative, significant, exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A silent change of a number would be a loss that no comparison of parsed values could detect.
    #[test]
    fn lossy_numbers_are_detected() {
        for kept in [
            "0",
            "-1",
            "1.50",
            "0.1",
            "1e2",
            "100.0",
            "-0.0",
            "0e5",
            "1E+10",
            "5e-324",
            "18446744073709551615",
            "-9223372036854775808",
            "1.7976931348623157e308",
            "-0",
            "{\"a\":[1,\"12345678901234567890123\",2.5]}",
            "\"\\\"99999999999999999999\"",
            "123456789012345680000",
        ] {
            assert!(numbers_survive(kept), "{kept}");
        }
        for changed in [
            "18446744073709551616",
            "-9223372036854775809",
            "0.1000000000000000055511151231257827",
            "1e999",
            "1e-999",
            "[1,{\"a\":12345678901234567890123}]",
            "9007199254740993.0",
        ] {
            assert!(!numbers_survive(changed), "{changed}");
        }
    }
}
