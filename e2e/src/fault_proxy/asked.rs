//! What does a request to the API server ask for? In Kubernetes' own words.

use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::header::USER_AGENT;
use hyper::{Method, Request};
use url::form_urlencoded;

/// A request, before it is passed on; what it does not say is empty.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Asked {
    /// The number of this write, the first being 1; a read has none.
    pub write: Option<usize>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    pub path: String,
    pub query: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    /// Of the one object that is meant, be it by the path or by a field selector.
    pub name: String,
    pub user_agent: String,
}

impl Asked {
    /// Reads a request's head; `writes` counts those that write.
    pub(super) fn new<B>(request: &Request<B>, writes: &AtomicUsize) -> Asked {
        let uri = request.uri();
        let agent = request.headers().get(USER_AGENT);
        let agent = agent.and_then(|agent| agent.to_str().ok());
        let mut asked = Asked {
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
            user_agent: agent.unwrap_or_default().to_owned(),
            ..Asked::default()
        };
        asked.read_path();
        asked.verb = asked.verb(request.method());
        if !matches!(asked.verb, "get" | "list" | "watch") {
            asked.write = Some(writes.fetch_add(1, Ordering::Relaxed) + 1);
        }
        if asked.name.is_empty() {
            asked.name = asked.selected().unwrap_or_default();
        }
        asked
    }

    /// `/api/v1/…` or `/apis/<group>/<version>/…`, then `namespaces/<namespace>/` or not, then
    /// `<resource>/<name>/<subresource>`, of which the end may be missing.
    fn read_path(&mut self) {
        let path = self.path.clone();
        let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
        let (group, words) = match &words[..] {
            ["api", _, words @ ..] => ("", words),
            ["apis", group, _, words @ ..] => (*group, words),
            _ => return,
        };
        let (namespace, words) = match words {
            ["namespaces", _] | ["namespaces", _, "finalize" | "status"] => ("", words),
            ["namespaces", namespace, words @ ..] => (*namespace, words),
            words => ("", words),
        };
        let word = |at: usize| words.get(at).copied().unwrap_or_default().to_owned();
        self.group = group.into();
        self.namespace = namespace.into();
        (self.resource, self.name, self.subresource) = (word(0), word(1), word(2));
    }

    fn verb(&self, method: &Method) -> &'static str {
        let is_of_many = !self.resource.is_empty() && self.name.is_empty();
        match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if is_of_many => "deletecollection",
            Method::DELETE => "delete",
            _ if self
                .parameter("watch")
                .is_some_and(|watch| watch != "false") =>
            {
                "watch"
            }
            _ if is_of_many => "list",
            _ => "get",
        }
    }

    fn selected(&self) -> Option<String> {
        let selector = self.parameter("fieldSelector")?;
        let mut fields = selector.split(',');
        let name = fields.find_map(|field| field.strip_prefix("metadata.name="));
        name.map(str::to_owned)
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find_map(|(key, value)| (key == name).then(|| value.into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, uri: &str) -> Asked {
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(USER_AGENT, "kubelet").body(()).unwrap();
        Asked::new(&request, &AtomicUsize::new(6))
    }

    #[test]
    fn a_watch_of_one_object_names_it() {
        let asked = asked(
            "GET",
            "/api/v1/namespaces/west/configmaps?fieldSelector=metadata.name%3Dskupper-router&watch=true",
        );
        assert_eq!((asked.verb, asked.write), ("watch", None));
        assert_eq!(
            (asked.resource, asked.namespace, asked.name),
            (
                "configmaps".to_owned(),
                "west".to_owned(),
                "skupper-router".to_owned()
            )
        );
        assert_eq!(asked.user_agent, "kubelet");
    }

    #[test]
    fn a_write_of_a_status_is_numbered() {
        let asked = asked(
            "PATCH",
            "/apis/skupper.io/v2alpha1/namespaces/west/sites/here/status",
        );
        assert_eq!((asked.verb, asked.write), ("patch", Some(7)));
        assert_eq!(
            (asked.group, asked.resource, asked.subresource, asked.name),
            (
                "skupper.io".to_owned(),
                "sites".to_owned(),
                "status".to_owned(),
                "here".to_owned()
            )
        );
    }

    #[test]
    fn a_namespace_is_in_none() {
        for (uri, name, subresource) in [
            ("/api/v1/namespaces", "", ""),
            ("/api/v1/namespaces/west", "west", ""),
            ("/api/v1/namespaces/west/finalize", "west", "finalize"),
        ] {
            let asked = asked("GET", uri);
            assert_eq!(
                (asked.resource.as_str(), asked.namespace.as_str()),
                ("namespaces", "")
            );
            assert_eq!(
                (asked.name.as_str(), asked.subresource.as_str()),
                (name, subresource)
            );
        }
    }

    #[test]
    fn what_is_of_many_is_told_from_what_is_of_one() {
        let verbs = [
            ("GET", "/api/v1/nodes", "list"),
            ("GET", "/api/v1/nodes/node-2", "get"),
            ("GET", "/readyz", "get"),
            ("DELETE", "/api/v1/namespaces/west/pods", "deletecollection"),
            ("DELETE", "/api/v1/namespaces/west/pods/router", "delete"),
        ];
        for (method, uri, verb) in verbs {
            assert_eq!(asked(method, uri).verb, verb, "{method} {uri}");
        }
    }
}
