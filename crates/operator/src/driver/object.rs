//! What of an object does a pass use, whatever its kind, and whether or not it fits its type?

use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use serde_json::Value;
use spanwire_plan::kinds::odd;
use spanwire_plan::seen::Odd;
use spanwire_plan::{Env, Kind, Plan, World};

/// A kind whose objects the World holds.
pub trait Held: Kind {
    /// The object of this name.
    fn held<'w>(world: &'w World, name: &str) -> Option<Object<'w, Self>>;
}

/// An object of a World.
pub enum Object<'w, K> {
    /// It fits its type.
    Fits(&'w K),
    /// It does not.
    Odd(&'w Odd),
}

impl<K: Kind> Object<'_, K> {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Fits(object) => object.meta(),
            Self::Odd(odd) => &odd.metadata,
        }
    }

    /// The object, as far as telling of it needs it.
    pub(super) fn stub(&self) -> PartialObjectMeta<K> {
        PartialObjectMeta {
            types: None,
            metadata: self.metadata().clone(),
            _phantom: PhantomData,
        }
    }

    /// What its status says now.
    pub(super) fn status(&self) -> Value {
        match self {
            Self::Fits(object) => serde_json::to_value(object)
                .map(|mut object| object["status"].take())
                .unwrap_or_default(),
            Self::Odd(odd) => odd.status.clone(),
        }
    }

    pub(super) fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        match self {
            Self::Fits(object) => object.plan(world, env),
            Self::Odd(object) => odd::<K>(object),
        }
    }
}
