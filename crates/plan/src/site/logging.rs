//! What should the router log, as the setting `router-logging` says?
//!
//! A word that the router does not know ends it at start (`facts/router.md` §1): so all are checked here.

use std::collections::BTreeMap;

/// The modules that every router of the 3 series knows (its schema, `log.module`).
const MODULES: [&str; 20] = [
    "ADDRESS_WATCH",
    "AGENT",
    "CONN_MGR",
    "CONTAINER",
    "DEFAULT",
    "ERROR",
    "FLOW_LOG",
    "HTTP",
    "HTTP_ADAPTOR",
    "MESSAGE",
    "POLICY",
    "PROTOCOL",
    "PYTHON",
    "ROUTER",
    "ROUTER_CORE",
    "ROUTER_HELLO",
    "ROUTER_LS",
    "ROUTER_MA",
    "SERVER",
    "TCP_ADAPTOR",
];

/// Levels that the setting may name, each with the one that every router knows: `trace` and `notice` are gone from
/// newer ones, so what is written in their place tells no less.
const LEVELS: [(&str, &str); 7] = [
    ("trace", "debug"),
    ("debug", "debug"),
    ("info", "info"),
    ("notice", "info"),
    ("warning", "warning"),
    ("error", "error"),
    ("critical", "critical"),
];

/// Module and levels of each log entry, from a comma list of `level` or `MODULE:level`, each level optionally with `+`
/// for *and above*.
pub(crate) fn parse(setting: &str) -> Result<Vec<(String, String)>, String> {
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for part in setting
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (module, level) = part.split_once(':').unwrap_or(("DEFAULT", part));
        let known = MODULES
            .into_iter()
            .find(|known| *known == module)
            .ok_or_else(|| format!("\"{module}\" is no module of the router"))?;
        let (word, above) = level
            .strip_suffix('+')
            .map_or((level, ""), |word| (word, "+"));
        let (_, word) = LEVELS
            .into_iter()
            .find(|(name, _)| *name == word)
            .ok_or_else(|| format!("\"{level}\" is no level"))?;
        modules
            .entry(known)
            .or_default()
            .push(format!("{word}{above}"));
    }
    // The router takes one entry a module.
    Ok(modules
        .into_iter()
        .map(|(module, levels)| (module.to_owned(), levels.join(",")))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(module: &str, levels: &str) -> (String, String) {
        (module.to_owned(), levels.to_owned())
    }

    #[test]
    fn levels_of_one_module_become_one_entry() {
        let parsed = parse("info+, ROUTER_CORE:debug,ROUTER_CORE:warning+").unwrap();
        assert_eq!(
            parsed,
            [
                pair("DEFAULT", "info+"),
                pair("ROUTER_CORE", "debug,warning+")
            ]
        );
        assert_eq!(parse(" ").unwrap(), []);
    }

    #[test]
    fn a_level_that_newer_routers_die_of_is_written_as_one_that_they_know() {
        assert_eq!(
            parse("trace+,SERVER:notice").unwrap(),
            [pair("DEFAULT", "debug+"), pair("SERVER", "info"),]
        );
    }

    #[test]
    fn a_word_that_the_router_would_die_of_is_refused() {
        assert!(parse("loud").unwrap_err().contains("\"loud\" is no level"));
        assert!(parse("KITCHEN:info").unwrap_err().contains("KITCHEN"));
        assert!(parse("INFO").is_err());
    }
}
