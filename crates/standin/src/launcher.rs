//! What does the image do before the router runs?
//!
//! As the public image's start script: copy the file named by `QDROUTERD_CONF`, expand environment
//! variables in the copy, run the router on the copy.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Writes the expanded copy to the temporary folder and says where it is.
pub fn prepare() -> io::Result<PathBuf> {
    let source = std::env::var_os("QDROUTERD_CONF").ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "the variable QDROUTERD_CONF is not set",
        )
    })?;
    let text = fs::read_to_string(&source)?;
    let extension = std::env::var("QDROUTERD_CONF_TYPE").unwrap_or_else(|_| "json".to_owned());
    let copy = std::env::temp_dir().join(format!("skrouterd.{extension}"));
    fs::write(&copy, expand(&text, variable))?;
    Ok(copy)
}

/// An environment variable; `HOSTNAME` falls back to the host's own name.
fn variable(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .or_else(|| (name == "HOSTNAME").then(host_name).flatten())
}

fn host_name() -> Option<String> {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
}

/// Replaces `$NAME` and `${NAME}`; what is unknown or malformed stays as it is.
fn expand(text: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let (reference, after) = reference(&rest[at..]);
        let name = reference
            .trim_start_matches(['$', '{'])
            .trim_end_matches('}');
        match variable(name) {
            Some(value) if !name.is_empty() => expanded.push_str(&value),
            _ => expanded.push_str(reference),
        }
        rest = after;
    }
    expanded.push_str(rest);
    expanded
}

/// Splits after the reference that `text` begins with; a lone dollar sign is a reference to nothing.
fn reference(text: &str) -> (&str, &str) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = match text[1..].strip_prefix('{') {
        Some(braced) => braced
            .find('}')
            .filter(|end| braced[..*end].chars().all(is_word))
            .map_or(1, |end| end + 3),
        None => text[1..]
            .find(|c| !is_word(c))
            .map_or(text.len(), |end| end + 1),
    };
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> String {
        expand(text, |name| {
            (name == "HOSTNAME").then(|| "pod-1".to_owned())
        })
    }

    #[test]
    fn both_spellings_of_a_variable_are_replaced() {
        assert_eq!(expanded("a-${HOSTNAME} $HOSTNAME."), "a-pod-1 pod-1.");
    }

    #[test]
    fn what_is_unknown_or_malformed_stays() {
        for text in [
            "${NOBODY}",
            "$management",
            "${HOSTNAME",
            "5$",
            "${a b}",
            "$$",
        ] {
            assert_eq!(expanded(text), text);
        }
    }
}
