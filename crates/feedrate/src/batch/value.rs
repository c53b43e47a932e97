//! Trees of tensors, numbers, text and containers.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::tensor::Tensor;
use crate::error::BoxError;

/// Something of another language or library, which steps of this crate hand on as it is.
pub trait Foreign: Any + Send + Sync {
    /// What it is, for messages.
    fn kind(&self) -> &'static str;

    /// The same with more about this one: its class, say.
    fn describe(&self) -> String {
        self.kind().to_owned()
    }

    /// The same as a value, for steps that look into it.
    fn to_value(&self) -> Result<Value, BoxError>;

    /// For whoever made it.
    fn as_any(&self) -> &dyn Any;
}

/// A shared [`Foreign`] thing; equal to itself only.
#[derive(Clone)]
pub struct Other(Arc<dyn Foreign>);

impl Other {
    /// Holds it.
    pub fn new(thing: impl Foreign) -> Self {
        Self(Arc::new(thing))
    }
}

impl std::ops::Deref for Other {
    type Target = dyn Foreign;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for Other {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Other({})", self.0.kind())
    }
}

/// A sample or a batch as a tree.
///
/// ```
/// use feedrate::batch::{Tensor, Value};
///
/// let sample = Value::map([
///     ("image", Value::from(Tensor::from_vec(vec![0_u8; 12], &[3, 2, 2])?)),
///     ("label", 7.into()),
///     ("file", "cat.png".into()),
/// ]);
/// assert_eq!(sample.get("label"), Some(&Value::Int(7)));
/// # Ok::<(), feedrate::batch::TensorError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Str(String),
    /// Bytes that are no numbers: an encoded image, say.
    Bytes(Vec<u8>),
    /// Numbers of one type in a grid.
    Tensor(Tensor),
    /// Values in order.
    List(Vec<Value>),
    /// Values by name, in the order in which they were put in.
    Map(Vec<(String, Value)>),
    /// Something that only its maker can look into.
    Other(Other),
}

impl Value {
    /// A map from pairs. A name that comes twice is found at its first place.
    pub fn map<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Value)>) -> Self {
        Self::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// A list.
    pub fn list<V: Into<Value>>(items: impl IntoIterator<Item = V>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }

    /// The value of this name, if it is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Self::Map(pairs) => pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The value at this place, if it is a list that has it.
    pub fn at(&self, index: usize) -> Option<&Value> {
        match self {
            Self::List(items) => items.get(index),
            _ => None,
        }
    }

    /// The tensor, if it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The same with nothing foreign in it.
    pub fn native(self) -> Result<Self, BoxError> {
        match self {
            Self::Other(thing) => thing.to_value(),
            Self::List(items) if items.iter().any(Self::foreign) => {
                let items = items.into_iter().map(Self::native);
                items.collect::<Result<_, _>>().map(Self::List)
            }
            Self::Map(pairs) if pairs.iter().any(|(_, value)| value.foreign()) => {
                let pairs = pairs.into_iter().map(|(name, value)| Ok((name, value.native()?)));
                pairs.collect::<Result<_, BoxError>>().map(Self::Map)
            }
            value => Ok(value),
        }
    }

    /// Whether something in it is foreign.
    fn foreign(&self) -> bool {
        match self {
            Self::Other(_) => true,
            Self::List(items) => items.iter().any(Self::foreign),
            Self::Map(pairs) => pairs.iter().any(|(_, value)| value.foreign()),
            _ => false,
        }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an int",
            Self::Float(_) => "a float",
            Self::Str(_) => "a string",
            Self::Bytes(_) => "bytes",
            Self::Tensor(_) => "a tensor",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Other(thing) => thing.kind(),
        }
    }

    /// The same with more about this one, where it is foreign.
    pub fn describe(&self) -> String {
        match self {
            Self::Other(thing) => thing.describe(),
            value => value.kind().to_owned(),
        }
    }

    /// Bytes of all tensors, strings and byte strings in it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Tensor(tensor) => tensor.bytes(),
            Self::List(items) => items.iter().map(Value::bytes).sum(),
            Self::Map(pairs) => pairs.iter().map(|(_, value)| value.bytes()).sum(),
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Other(_) => 0,
        }
    }
}

macro_rules! from {
    ($($type:ty => |$name:ident| $value:expr;)*) => { $(
        impl From<$type> for Value {
            fn from($name: $type) -> Self { $value }
        }
    )* };
}

from! {
    bool => |x| Value::Bool(x);
    i64 => |x| Value::Int(x);
    i32 => |x| Value::Int(x.into());
    i16 => |x| Value::Int(x.into());
    i8 => |x| Value::Int(x.into());
    u32 => |x| Value::Int(x.into());
    u16 => |x| Value::Int(x.into());
    u8 => |x| Value::Int(x.into());
    f64 => |x| Value::Float(x);
    f32 => |x| Value::Float(x.into());
    String => |x| Value::Str(x);
    &str => |x| Value::Str(x.to_owned());
    Tensor => |x| Value::Tensor(x);
    Vec<Value> => |x| Value::List(x);
}
