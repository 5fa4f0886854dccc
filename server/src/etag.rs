//! Entity tags: whether what a caller holds is still what we have.

use axum::http::{HeaderMap, HeaderName, header};

/// Whether `If-None-Match` names `etag`.
pub(crate) fn is_held(headers: &HeaderMap, etag: &str) -> bool {
    names(headers, &header::IF_NONE_MATCH, etag)
}

/// Whether a range may be served: `If-Range` is absent or names `etag`.
pub(crate) fn allows_range(headers: &HeaderMap, etag: &str) -> bool {
    !headers.contains_key(header::IF_RANGE) || names(headers, &header::IF_RANGE, etag)
}

fn names(headers: &HeaderMap, name: &HeaderName, etag: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == "*" || tag == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_tags_is_enough_and_a_proxy_may_have_weakened_it() {
        let mut headers = HeaderMap::new();
        assert!(!is_held(&headers, "\"a\""));
        assert!(allows_range(&headers, "\"a\""));
        headers.insert(header::IF_NONE_MATCH, "\"b\", W/\"a\"".parse().unwrap());
        headers.insert(header::IF_RANGE, "\"b\"".parse().unwrap());
        assert!(is_held(&headers, "\"a\""));
        assert!(!is_held(&headers, "\"c\""));
        assert!(!allows_range(&headers, "\"a\""));
    }
}
