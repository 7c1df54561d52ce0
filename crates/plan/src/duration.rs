//! How long is a length of time as Go writes it?
//!
//! The syntax of Go's `time.ParseDuration`, which upstream and its command line use (`15m0s`, `1.5h`). Whole numbers
//! all the way and no panic, whatever the text; what kube's own parser does with `99999999999h` rules it out.

use std::time::Duration;

/// The longest text that is read: the schema's limit.
const MAX_TEXT: usize = 64;

/// The length of time, or what is wrong with the text.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.len() > MAX_TEXT {
        return Err(format!("it has more than {MAX_TEXT} characters"));
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.starts_with('-') {
        return Err("it is negative".to_owned());
    }
    if rest.is_empty() {
        return Err("it is empty".to_owned());
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (part, behind) = part(rest)?;
        nanos = nanos.saturating_add(part);
        rest = behind;
    }
    // Go counts nanoseconds in 63 bits.
    match u64::try_from(nanos) {
        Ok(nanos) if i64::try_from(nanos).is_ok() => Ok(Duration::from_nanos(nanos)),
        _ => Err("it is longer than 292 years".to_owned()),
    }
}

/// One number with its unit, in nanoseconds, and what stands behind it.
fn part(text: &str) -> Result<(u128, &str), String> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(format!("a number is missing before \"{text}\""));
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let nanos: u128 = match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" => return Err(format!("a unit is missing behind \"{whole}\"")),
        unknown => return Err(format!("unknown unit \"{unknown}\"")),
    };
    let whole = number(whole).saturating_mul(nanos);
    // 18 digits of a fraction are more than an hour has nanoseconds.
    let fraction: &str = fraction.get(..18).unwrap_or(fraction);
    let scale = 10u128.pow(u32::try_from(fraction.len()).unwrap_or_default());
    Ok((whole.saturating_add(number(fraction) * nanos / scale), rest))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

fn number(digits: &str) -> u128 {
    digits.bytes().fold(0, |number: u128, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u128::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_reads_is_read() {
        for (text, millis) in [
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("15m0s", 900_000),
            ("90s", 90_000),
            ("+1s", 1_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("100ms", 100),
            ("2000us", 2),
            ("2000\u{b5}s", 2),
            ("2000\u{3bc}s", 2),
            ("3000000ns", 3),
            ("0", 0),
            ("0s", 0),
            ("0.3333333333333333333h", 1_199_999),
        ] {
            assert_eq!(
                parse(text).map(|length| length.as_millis()),
                Ok(millis),
                "{text}"
            );
        }
    }

    #[test]
    fn what_go_refuses_is_refused_with_a_hint() {
        for (text, hint) in [
            ("5x", "unknown unit \"x\""),
            ("", "it is empty"),
            ("-1s", "it is negative"),
            ("5", "a unit is missing behind \"5\""),
            ("s", "a number is missing before \"s\""),
            (".s", "a number is missing before \".s\""),
            ("1d", "unknown unit \"d\""),
            ("1h 30m", "unknown unit \"h \""),
            ("1e3s", "unknown unit \"e\""),
            ("999999999999999999999h", "it is longer than 292 years"),
            (
                "99999999999999999999999999999999999999999999999999999999999h",
                "it is longer than 292 years",
            ),
            ("\u{661}s", "a number is missing before \"\u{661}s\""),
        ] {
            assert_eq!(parse(text), Err(hint.to_owned()), "{text}");
        }
    }
}
