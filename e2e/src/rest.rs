//! Does a settled world cost nothing? Waits until our writes cease, then watches that none comes and nothing changes.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::audit::{Mark, Request};
use crate::bed::Bed;
use crate::census::Census;
use crate::wait;

/// How long nothing may be written before the world counts as settled.
const QUIET: Duration = Duration::from_secs(3);
const SETTLED_WITHIN: Duration = Duration::from_mins(2);

/// Waits until nothing changes in `namespaces` any more, and takes the census then.
pub fn reached(bed: &Bed, namespaces: &[&str]) -> Result<Census> {
    let kubectl = bed.kubectl();
    wait::until("the world to settle", SETTLED_WITHIN, || {
        let mark = bed.audit().mark()?;
        let before = Census::take(&kubectl, namespaces)?;
        wait::for_period(QUIET)?;
        let after = Census::take(&kubectl, namespaces)?;
        let is_quiet = writes(bed, mark, namespaces)?.is_empty();
        Ok((is_quiet && before == after).then_some(after))
    })
}

/// Fails if something is written by us in `namespaces`, or changes there, within `period`.
pub fn lasts(bed: &Bed, namespaces: &[&str], period: Duration) -> Result<()> {
    let mark = bed.audit().mark()?;
    let before = Census::take(&bed.kubectl(), namespaces)?;
    wait::for_period(period)?;
    unchanged(bed, namespaces, mark, &before)
}

/// Fails if something was written by us in `namespaces` after the mark, or changed there after the census.
pub fn unchanged(bed: &Bed, namespaces: &[&str], mark: Mark, before: &Census) -> Result<()> {
    let after = Census::take(&bed.kubectl(), namespaces)?;
    let written: Vec<String> = writes(bed, mark, namespaces)?
        .iter()
        .map(Request::to_string)
        .collect();
    let changes = before.changes(&after);
    ensure!(
        written.is_empty() && changes.is_empty(),
        "written at rest:\n{}\nchanged at rest:\n{}",
        written.join("\n"),
        changes.join("\n")
    );
    Ok(())
}

/// What we wrote in `namespaces` after the mark, the adaptors too; only the Lease does not count.
pub fn writes(bed: &Bed, mark: Mark, namespaces: &[&str]) -> Result<Vec<Request>> {
    let requests = bed.audit().since(mark)?.into_iter().filter(|request| {
        let object = &request.object_ref;
        let is_here = namespaces.contains(&object.namespace.as_str());
        is_here && request.is_ours() && request.is_write() && !request.is_lease()
    });
    Ok(requests.collect())
}
