//! What does the API server have to know of our kinds?

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionVersion,
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube_core::CustomResourceExt;

use crate::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site, check,
};

/// The API group of all kinds.
pub const GROUP: &str = "skupper.io";
/// The version that is stored, and that new manifests should use.
pub const VERSION: &str = "v2alpha1";
/// The version that older manifests use. It is served, with a warning.
pub const OLD_VERSION: &str = "v1alpha1";
/// `kubectl get skupper` lists all kinds.
pub const CATEGORY: &str = "skupper";

/// The definition of every kind, ready to be applied.
///
/// Each kind is served in two versions with one schema, the union of both, and so without any conversion: what was
/// written as one is read as the other, and nothing can be lost or stand in the way.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [
        Site::crd(),
        Link::crd(),
        named_like_a_service(RouterAccess::crd()),
        named_like_a_service(SecuredAccess::crd()),
        Certificate::crd(),
        AccessGrant::crd(),
        AccessToken::crd(),
    ]
    .into_iter()
    .map(in_both_versions)
    .collect()
}

/// An access gets a Service of its own name, and names of Services are shorter than those of other objects. Said when
/// the object is created, it spares a condition that nobody looks at. Not said later: an object that was there before
/// the rule must still be able to get a status.
fn named_like_a_service(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for root in schemas(&mut crd) {
        root.x_kubernetes_validations = Some(vec![ValidationRule {
            rule: format!(
                "oldSelf.hasValue() || (self.metadata.name.size() <= {} && \
                 self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$'))",
                check::DNS_LABEL
            ),
            message: Some(format!(
                "metadata.name must be usable as the name of a Service: at most {} lower-case letters, digits and \
                 '-', beginning with a letter",
                check::DNS_LABEL
            )),
            optional_old_self: Some(true),
            ..ValidationRule::default()
        }]);
    }
    crd
}

fn schemas(crd: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let validations = crd
        .spec
        .versions
        .iter_mut()
        .filter_map(|version| version.schema.as_mut());
    validations.filter_map(|validation| validation.open_api_v3_schema.as_mut())
}

fn in_both_versions(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for root in schemas(&mut crd) {
        tidy(root);
        // Upstream takes objects without a spec, of every kind: to us they have an empty one.
        root.required = None;
        if let Some(spec) = root
            .properties
            .as_mut()
            .and_then(|properties| properties.get_mut("spec"))
        {
            spec.nullable = Some(true);
        }
    }
    let kind = &crd.spec.names.kind;
    let old: Vec<CustomResourceDefinitionVersion> = crd
        .spec
        .versions
        .iter()
        .map(|version| CustomResourceDefinitionVersion {
            name: OLD_VERSION.to_owned(),
            storage: false,
            deprecated: Some(true),
            deprecation_warning: Some(format!(
                "{GROUP}/{OLD_VERSION} {kind} is deprecated: write {GROUP}/{VERSION} instead, the object stays the same"
            )),
            ..version.clone()
        })
        .collect();
    crd.spec.versions.extend(old);
    crd.spec.conversion = Some(CustomResourceConversion {
        strategy: "None".to_owned(),
        webhook: None,
    });
    crd
}

/// Takes out of a generated schema what Rust means and Kubernetes does not.
///
/// - `nullable`: the API server takes a null out of a field that is not nullable, so null and absent are one.
/// - `default`: defaults are the operator's, so that a stored object says what its user wrote and no more.
/// - `title`, and the line breaks of doc comments.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.default = None;
    schema.title = None;
    if let Some(text) = &mut schema.description {
        *text = unwrapped(text);
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        tidy(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => tidy(item),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(tidy),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        tidy(value);
    }
}

/// Joins the lines of each paragraph.
fn unwrapped(text: &str) -> String {
    let paragraphs = text
        .split("\n\n")
        .map(|paragraph| paragraph.replace('\n', " "));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
