//! Does each test that a document names exist?
//!
//! A test's name is a sentence, so it is told from other code by its underscores.

/// Documents that promise something, and whether each row of their tables has to name a test that holds it.
pub(super) const DOCUMENTS: [(&str, bool); 2] = [("ARCHITECTURE.md", false), ("SECURITY.md", true)];

/// Underscores that only a sentence has.
const SENTENCE: usize = 2;

/// The faults of a document, given all sources.
pub(super) fn faults(document: &str, has_tables: bool, sources: &str) -> Vec<String> {
    let missing = tests(document)
        .filter(|name| !sources.contains(&format!("fn {name}(")))
        .map(|name| format!("there is no test {name}"));
    let rows = document
        .lines()
        .filter(|line| has_tables && line.starts_with("| "))
        .filter(|line| !line.contains("---"));
    // The first row of a table names its columns.
    let bare = rows
        .skip(1)
        .filter(|row| tests(row).next().is_none())
        .map(|row| format!("no test is named in: {row}"));
    missing.chain(bare).collect()
}

fn tests(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| {
        name.matches('_').count() >= SENTENCE
            && name.chars().all(|letter| {
                letter == '_' || letter.is_ascii_lowercase() || letter.is_ascii_digit()
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCES: &str = "fn one_bad_apple_costs_one_apple() {}";

    #[test]
    fn a_test_that_is_named_exists() {
        let good = "Held by `one_bad_apple_costs_one_apple`, see `apple.rs` and `SOME_ENV_NAME`.";
        assert!(faults(good, false, SOURCES).is_empty());
        let bad = "Held by `two_bad_apples_cost_two`.";
        assert_eq!(
            faults(bad, false, SOURCES),
            ["there is no test two_bad_apples_cost_two"]
        );
    }

    #[test]
    fn a_row_names_what_holds_it() {
        let table = "| rule | test |\n| --- | --- |\n| apples | `one_bad_apple_costs_one_apple` |\n| pears | |\n";
        assert_eq!(
            faults(table, true, SOURCES),
            ["no test is named in: | pears | |"]
        );
    }
}
