//! placeholder
pub(crate) fn run(_root: &std::path::Path) -> anyhow::Result<()> {
    Ok(())
}
