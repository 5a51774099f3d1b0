//! Numbers as PostgreSQL prints them.

use std::io::Write as _;

/// A double: the shortest digits that read back the same, with an exponent below 1e-4 and from
/// 1e15 on.
pub(crate) fn write_double(out: &mut Vec<u8>, value: f64) {
    if !write_special(out, value.is_nan(), value.is_infinite(), value.is_sign_negative()) {
        let mut buffer = Buffer::default();
        // The buffer holds the longest shortest form; a failed write would only cut digits.
        let _ = write!(buffer, "{value:e}");
        write_float(out, buffer.bytes(), 15);
    }
}

/// A real: likewise, with an exponent from 1e6 on.
pub(crate) fn write_real(out: &mut Vec<u8>, value: f32) {
    if !write_special(out, value.is_nan(), value.is_infinite(), value.is_sign_negative()) {
        let mut buffer = Buffer::default();
        let _ = write!(buffer, "{value:e}");
        write_float(out, buffer.bytes(), 6);
    }
}

/// Room for `-d.dddddddddddddddde-ddd` without an allocation.
#[derive(Default)]
struct Buffer {
    bytes: [u8; 32],
    length: usize,
}

impl Buffer {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::io::Write for Buffer {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let taken = data.len().min(room.len());
        for (slot, byte) in room.iter_mut().zip(data) {
            *slot = *byte;
        }
        self.length += taken;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write_special(out: &mut Vec<u8>, nan: bool, infinite: bool, negative: bool) -> bool {
    let text: &[u8] = match (nan, infinite, negative) {
        (true, _, _) => b"NaN",
        (_, true, false) => b"Infinity",
        (_, true, true) => b"-Infinity",
        _ => return false,
    };
    out.extend_from_slice(text);
    true
}

/// `scientific` is Rust's `-d.ddde-dd`.
fn write_float(out: &mut Vec<u8>, scientific: &[u8], exponent_from: i32) {
    let (mantissa, exponent) = match scientific.iter().position(|b| *b == b'e') {
        Some(at) => (scientific.get(..at).unwrap_or_default(), scientific.get(at + 1..).unwrap_or_default()),
        None => (scientific, &b"0"[..]),
    };
    let exponent: i32 = std::str::from_utf8(exponent).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if !(-4..exponent_from).contains(&exponent) {
        out.extend_from_slice(mantissa);
        let _ = write!(out, "e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
        return;
    }
    let mantissa = match mantissa.strip_prefix(b"-") {
        Some(rest) => {
            out.push(b'-');
            rest
        }
        None => mantissa,
    };
    let digits = || mantissa.iter().copied().filter(u8::is_ascii_digit);
    let count = digits().count();
    if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', exponent.unsigned_abs() as usize - 1));
        out.extend(digits());
        return;
    }
    let whole = exponent.unsigned_abs() as usize + 1;
    out.extend(digits().take(whole));
    out.extend(std::iter::repeat_n(b'0', whole.saturating_sub(count)));
    if count > whole {
        out.push(b'.');
        out.extend(digits().skip(whole));
    }
}

/// A scaled integer as a decimal number; `trim` takes trailing zeros of the fraction away.
pub(crate) fn write_decimal(out: &mut Vec<u8>, unscaled: i128, scale: i8, trim: bool) {
    if unscaled < 0 {
        out.push(b'-');
    }
    let magnitude = unscaled.unsigned_abs();
    let Ok(scale) = u32::try_from(scale) else {
        // A negative scale stands for zeros before the point.
        let _ = write!(out, "{magnitude}");
        if magnitude != 0 {
            out.extend(std::iter::repeat_n(b'0', usize::from(scale.unsigned_abs())));
        }
        return;
    };
    let unit = 10u128.checked_pow(scale).unwrap_or(u128::MAX);
    let _ = write!(out, "{}", magnitude / unit);
    let fraction = magnitude % unit;
    if scale == 0 || (trim && fraction == 0) {
        return;
    }
    let _ = write!(out, ".{fraction:0width$}", width = scale as usize);
    if trim {
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn double(value: f64) -> String {
        let mut out = Vec::new();
        write_double(&mut out, value);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn doubles_as_postgresql_prints_them() {
        // PostgreSQL 16: SELECT v::float8.
        let cases = [
            (1e20, "1e+20"),
            (1e15, "1e+15"),
            (1e14, "100000000000000"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-0.0, "-0"),
            (100.5, "100.5"),
            (0.1, "0.1"),
            (1.0, "1"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, text) in cases {
            assert_eq!(double(value), text);
        }
    }

    #[test]
    fn reals_turn_to_exponents_earlier() {
        let real = |value| {
            let mut out = Vec::new();
            write_real(&mut out, value);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(real(100_000.0), "100000");
        assert_eq!(real(1_000_000.0), "1e+06");
        assert_eq!(real(0.1), "0.1");
    }

    #[test]
    fn decimals() {
        let decimal = |unscaled, scale, trim| {
            let mut out = Vec::new();
            write_decimal(&mut out, unscaled, scale, trim);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(decimal(12_345, 2, false), "123.45");
        assert_eq!(decimal(-5, 2, false), "-0.05");
        assert_eq!(decimal(0, 2, false), "0.00");
        assert_eq!(decimal(25_000_000_000, 10, true), "2.5");
        assert_eq!(decimal(20_000_000_000, 10, true), "2");
        assert_eq!(decimal(7, 0, false), "7");
        assert_eq!(decimal(7, -2, false), "700");
    }
}
