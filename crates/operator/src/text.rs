//! How is text from outside made fit to be shown to a person?

/// The text with everything but printable characters replaced by `?`, and cut to `max` characters.
pub fn printable(text: &str, max: usize) -> String {
    text.chars()
        .take(max)
        .map(|c| {
            if c.is_control() || is_invisible(c) {
                '?'
            } else {
                c
            }
        })
        .collect()
}

/// The text's first `max` characters: the cut never falls inside one.
pub fn cut(text: &str, max: usize) -> &str {
    text.char_indices()
        .nth(max)
        .map_or(text, |(end, _)| text.split_at(end).0)
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Characters that change how their neighbours are shown: directions, joiners, line separators, byte order marks.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_not_printed() {
        assert_eq!(printable("a\u{1b}[31mb\nc\u{202e}d", 100), "a?[31mb?c?d");
    }

    #[test]
    fn a_cut_falls_between_characters() {
        assert_eq!(printable("äöü", 2), "äö");
        assert_eq!(cut("äöü", 2), "äö");
        assert_eq!(cut("äöü", 3), "äöü");
    }
}
