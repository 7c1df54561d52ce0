//! (being written)

use crate::kinds::Changed;
use crate::plan::{Env, ObjectKind, Plan};
use crate::world::World;

pub(crate) fn plan(_object: &spanwire_api::SecuredAccess, _world: &World, _env: &Env<'_>) -> Plan {
    Plan::nothing()
}

pub(crate) fn wakes(_changed: &Changed<'_>, _world: &World) -> Vec<String> {
    Vec::new()
}

pub(crate) fn references(_object: &spanwire_api::SecuredAccess) -> Vec<(ObjectKind, String)> {
    Vec::new()
}
