//! A small plain value, for the few parts of a snapshot that are kept as they are.

/// A plain value of a pickle.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer; larger ones than an `i128` are cut to its range.
    Int(i128),
    /// A float.
    Float(f64),
    /// A text.
    Str(String),
    /// A list.
    List(Vec<Value>),
    /// A tuple.
    Tuple(Vec<Value>),
    /// A dict, in order.
    Dict(Vec<(Value, Value)>),
}

impl Value {
    /// This value as an unsigned number, if it is one.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The entry of a dict under a text key.
    pub fn entry(&self, key: &str) -> Option<&Value> {
        match self {
            Self::Dict(entries) => entries
                .iter()
                .find(|(name, _)| matches!(name, Self::Str(name) if name == key))
                .map(|(_, v)| v),
            _ => None,
        }
    }
}
