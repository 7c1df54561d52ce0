//! Do the definitions say what the API server, a user and the upstream tools need?

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
    JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use spanwire_api::{CATEGORY, GROUP, OLD_VERSION, VERSION, crds};

#[test]
fn kinds_carry_the_names_that_upstream_gave_them() {
    let names: Vec<_> = crds()
        .into_iter()
        .map(|crd| {
            assert_eq!(crd.spec.group, GROUP);
            assert_eq!(crd.spec.scope, "Namespaced");
            let names = crd.spec.names;
            assert_eq!(names.categories, Some(vec![CATEGORY.to_owned()]));
            assert_eq!(names.singular, Some(names.kind.to_lowercase()));
            assert_eq!(crd.metadata.name, Some(format!("{}.{GROUP}", names.plural)));
            (
                names.kind,
                names.plural,
                names.short_names.unwrap_or_default().join(" "),
            )
        })
        .collect();
    let expected = [
        ("Site", "sites", "st"),
        ("Link", "links", "ln"),
        ("RouterAccess", "routeraccesses", ""),
        ("SecuredAccess", "securedaccesses", ""),
        ("Certificate", "certificates", ""),
        ("AccessGrant", "accessgrants", "grant gr"),
        ("AccessToken", "accesstokens", "token to"),
    ];
    assert_eq!(
        names,
        expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()))
    );
}

#[test]
fn columns_are_those_that_upstream_prints() {
    let columns: Vec<String> = crds()
        .iter()
        .map(|crd| {
            let columns = version(crd, VERSION)
                .additional_printer_columns
                .iter()
                .flatten();
            let columns: Vec<_> = columns
                .map(|c| format!("{}={}", c.name, c.json_path))
                .collect();
            format!("{}: {}", crd.spec.names.kind, columns.join(", "))
        })
        .collect();
    let expected = [
        "Site: Status=.status.status, Sites In Network=.status.sitesInNetwork, Message=.status.message",
        "Link: Status=.status.status, Remote Site=.status.remoteSiteName, Message=.status.message",
        "RouterAccess: Status=.status.status, Message=.status.message",
        "SecuredAccess: Status=.status.status, Message=.status.message",
        "Certificate: CA=.spec.ca, Server=.spec.server, Client=.spec.client, Signing=.spec.signing, \
         Status=.status.status, Expiration=.status.expiration, Message=.status.message",
        "AccessGrant: Redemptions Allowed=.spec.redemptionsAllowed, Redemptions Made=.status.redemptions, \
         Expiration=.status.expirationTime, Status=.status.status, Message=.status.message",
        "AccessToken: URL=.spec.url, Redeemed=.status.redeemed, Status=.status.status, Message=.status.message",
    ];
    assert_eq!(columns, expected);
    assert!(
        columns.iter().all(|kind| !kind.contains("code")),
        "a column shows a code"
    );
}

#[test]
fn both_versions_are_served_with_one_schema() {
    for crd in crds() {
        let (new, old) = (version(&crd, VERSION), version(&crd, OLD_VERSION));
        assert_eq!(crd.spec.versions.len(), 2);
        assert!(new.served && new.storage && new.deprecated.is_none());
        assert!(old.served && !old.storage && old.deprecated == Some(true));
        let warning = old.deprecation_warning.as_deref().unwrap_or_default();
        assert!(
            !warning.is_empty() && warning.len() <= 256,
            "the API server takes 256 characters"
        );
        let as_new = CustomResourceDefinitionVersion {
            name: new.name.clone(),
            storage: true,
            deprecated: None,
            deprecation_warning: None,
            ..old.clone()
        };
        assert_eq!(&as_new, new);
        assert_eq!(
            crd.spec.conversion.as_ref().map(|c| c.strategy.as_str()),
            Some("None")
        );
        assert!(
            new.subresources
                .as_ref()
                .is_some_and(|s| s.status.is_some())
        );
    }
}

#[test]
fn an_object_without_a_spec_is_taken() {
    for crd in crds() {
        assert_eq!(schema(&crd).required, None, "{}", crd.spec.names.kind);
    }
}

#[test]
fn every_field_is_explained() {
    each_schema(|path, schema, is_field| {
        let text = schema.description.as_deref().unwrap_or_default();
        assert!(!is_field || !text.is_empty(), "{path} has no description");
        assert!(
            !text.replace("\n\n", " ").contains('\n'),
            "{path} breaks a line"
        );
    });
}

#[test]
fn schemas_hold_nothing_that_kubernetes_does_not_know() {
    each_schema(|path, schema, _| {
        let is_spec = path
            .split_once('.')
            .is_some_and(|(_, field)| field == "spec");
        assert_eq!(schema.nullable, is_spec.then_some(true), "{path}");
        assert_eq!(schema.default, None, "{path}: defaults are the operator's");
        assert_eq!(schema.title, None, "{path}");
        assert!(schema.type_.is_some(), "{path} has no type");
        let formats = [None, Some("int32"), Some("int64"), Some("date-time")];
        assert!(
            formats.contains(&schema.format.as_deref()),
            "{path}: {:?}",
            schema.format
        );
    });
}

#[test]
fn what_a_rule_reads_is_bounded() {
    each_schema(|path, schema, _| {
        let Some(rules) = &schema.x_kubernetes_validations else {
            return;
        };
        match schema.type_.as_deref() {
            Some("string") => assert!(schema.max_length.is_some(), "{path} has no maxLength"),
            Some("array") => assert!(schema.max_items.is_some(), "{path} has no maxItems"),
            _ => {}
        }
        for rule in rules {
            let message = rule.message.as_deref().unwrap_or_default();
            assert!(!message.is_empty(), "{path}: a rule without a message");
            assert!(
                !message.contains('\n') && message.len() <= 2048,
                "{path}: {message}"
            );
        }
    });
}

fn version<'a>(
    crd: &'a CustomResourceDefinition,
    name: &str,
) -> &'a CustomResourceDefinitionVersion {
    crd.spec
        .versions
        .iter()
        .find(|version| version.name == name)
        .unwrap()
}

fn schema(crd: &CustomResourceDefinition) -> &JSONSchemaProps {
    let validation = version(crd, VERSION).schema.as_ref().unwrap();
    validation.open_api_v3_schema.as_ref().unwrap()
}

/// Visits every schema of every kind with its path, and whether it is a field (not an item of a list or map).
fn each_schema(mut visit: impl FnMut(&str, &JSONSchemaProps, bool)) {
    for crd in crds() {
        walk(&crd.spec.names.kind, schema(&crd), true, &mut visit);
    }
}

fn walk(
    path: &str,
    schema: &JSONSchemaProps,
    is_field: bool,
    visit: &mut impl FnMut(&str, &JSONSchemaProps, bool),
) {
    visit(path, schema, is_field);
    for (name, property) in schema.properties.iter().flatten() {
        walk(&format!("{path}.{name}"), property, true, visit);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
        walk(&format!("{path}[]"), item, false, visit);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &schema.additional_properties {
        walk(&format!("{path}{{}}"), value, false, visit);
    }
}
