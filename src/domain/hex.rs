//! Hexadecimal encoding.

use std::fmt::Write as _;

/// Encodes bytes as lower-case digits, two per byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Decodes exactly `2 * N` digits of either case; `None` for anything else.
#[must_use]
pub fn unhex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(value(pair[0])? << 4 | value(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A wrongly decoded key opens nothing, or the wrong store.
    #[test]
    fn hex_round_trips_and_invalid_digits_are_refused() {
        assert_eq!(hex(&[0x0a, 0xff, 0]), "0aff00");
        assert_eq!(unhex(b"0aFF00"), Some([0x0a, 0xff, 0]));
        for wrong in ["0aff0", "0aff0g", "0aff001", "", "+aff00"] {
            assert_eq!(unhex::<3>(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
