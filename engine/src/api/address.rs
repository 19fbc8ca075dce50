//! The address of a segment.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// Beginning of an id of SPIFFE.
const SPIFFE: &str = "spiffe://";

/// A node and the name of a segment on it. The text form is `NODE/SEGMENT`, or `NODE` for the only
/// segment of a node; `NODE` is `host:port`, or a node's name where a metadata store is set. The last
/// slash of a text that begins with `spiffe://` is the one before the segment, so the only segment of
/// such a node is `spiffe://DOMAIN/PATH/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SegmentAddr {
    node: String,
    segment: Option<String>,
}

impl SegmentAddr {
    /// The address of `segment` on `node`.
    pub fn new(node: impl Into<String>, segment: impl Into<String>) -> Self {
        Self { node: node.into(), segment: Some(segment.into()).filter(|name| !name.is_empty()) }
    }

    /// The node: `host:port`, or its name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The name of the segment; `None` for the only one of the node.
    pub fn segment(&self) -> Option<&str> {
        self.segment.as_deref()
    }
}

impl From<&str> for SegmentAddr {
    fn from(text: &str) -> Self {
        // An id of SPIFFE has slashes of its own; the name of a segment has none.
        let parts = match text.strip_prefix(SPIFFE) {
            Some(path) if path.contains('/') => text.rsplit_once('/'),
            Some(_) => None,
            None => text.split_once('/'),
        };
        match parts {
            Some((node, segment)) => Self::new(node, segment),
            None => Self { node: text.to_owned(), segment: None },
        }
    }
}

impl From<&String> for SegmentAddr {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for SegmentAddr {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl FromStr for SegmentAddr {
    type Err = Infallible;

    /// Every text is an address; a node or segment that does not exist fails when it is opened.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.into())
    }
}

impl fmt::Display for SegmentAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.segment {
            Some(segment) => write!(f, "{}/{segment}", self.node),
            // Without the slash, its last part would be the segment.
            None if self.node.strip_prefix(SPIFFE).is_some_and(|path| path.contains('/')) => {
                write!(f, "{}/", self.node)
            }
            None => f.write_str(&self.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SegmentAddr;

    #[test]
    fn text_names_node_and_segment() {
        let named = SegmentAddr::from("10.0.0.7:7411/kv");
        assert_eq!((named.node(), named.segment()), ("10.0.0.7:7411", Some("kv")));
        assert_eq!(named, SegmentAddr::new("10.0.0.7:7411", "kv"));
        assert_eq!("10.0.0.7:7411/kv".parse(), Ok(named.clone()));
        assert_eq!(named.to_string(), "10.0.0.7:7411/kv");
        let id = "spiffe://example.org/ns/kv/gpu-1";
        let named = SegmentAddr::from(format!("{id}/kv"));
        assert_eq!((named.node(), named.segment()), (id, Some("kv")));
        assert_eq!(SegmentAddr::from(named.to_string()), named);
        let only = SegmentAddr::new(id, "");
        assert_eq!(only.to_string(), format!("{id}/"));
        assert_eq!(SegmentAddr::from(only.to_string()), only);
        for text in ["spiffe://", "spiffe:///", "spiffe://a", "spiffe://a/", "spiffe://a//"] {
            let address = SegmentAddr::from(text);
            assert_eq!(SegmentAddr::from(address.to_string()), address, "{text}");
        }
        for only in ["h:1", "h:1/"] {
            let only = SegmentAddr::from(only);
            assert_eq!((only.segment(), only.to_string()), (None, "h:1".to_owned()));
        }
    }
}
