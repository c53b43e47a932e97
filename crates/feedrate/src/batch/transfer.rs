//! Batches that can cross a process boundary.

use super::tensor::Tensor;
use super::value::Value;
use crate::error::BoxError;

/// A batch type that has a form as a [`Value`], so that a worker process can hand it over. Tensors cross without a copy when
/// they lie in the worker's arena.
///
/// ```
/// use feedrate::batch::{Tensor, Transfer, Value};
/// use feedrate::BoxError;
///
/// struct Batch { images: Tensor, labels: Tensor }
///
/// impl Transfer for Batch {
///     fn into_value(self) -> Value {
///         Value::List(vec![self.images.into(), self.labels.into()])
///     }
///
///     fn from_value(value: Value) -> Result<Self, BoxError> {
///         let (images, labels) = Transfer::from_value(value)?;
///         Ok(Self { images, labels })
///     }
/// }
/// ```
pub trait Transfer: Sized + Send + 'static {
    /// The batch as a tree.
    fn into_value(self) -> Value;

    /// The batch from what [`into_value`](Transfer::into_value) gave.
    fn from_value(value: Value) -> Result<Self, BoxError>;
}

fn wrong(wanted: &str, found: &Value) -> BoxError {
    format!("expected {wanted}, found {}", found.kind()).into()
}

impl Transfer for Value {
    fn into_value(self) -> Value {
        self
    }

    fn from_value(value: Value) -> Result<Self, BoxError> {
        Ok(value)
    }
}

macro_rules! scalars {
    ($($type:ty => $variant:ident, $what:literal;)*) => { $(
        impl Transfer for $type {
            fn into_value(self) -> Value {
                Value::$variant(self)
            }

            fn from_value(value: Value) -> Result<Self, BoxError> {
                match value {
                    Value::$variant(x) => Ok(x),
                    other => Err(wrong($what, &other)),
                }
            }
        }
    )* };
}

scalars! {
    Tensor => Tensor, "a tensor";
    bool => Bool, "a bool";
    i64 => Int, "an int";
    f64 => Float, "a float";
    String => Str, "a string";
}

impl Transfer for u64 {
    fn into_value(self) -> Value {
        Value::Int(self.cast_signed())
    }

    fn from_value(value: Value) -> Result<Self, BoxError> {
        i64::from_value(value).map(i64::cast_unsigned)
    }
}

impl Transfer for usize {
    fn into_value(self) -> Value {
        (self as u64).into_value()
    }

    fn from_value(value: Value) -> Result<Self, BoxError> {
        Ok(usize::try_from(u64::from_value(value)?)?)
    }
}

impl<T: Transfer> Transfer for Vec<T> {
    fn into_value(self) -> Value {
        Value::List(self.into_iter().map(T::into_value).collect())
    }

    fn from_value(value: Value) -> Result<Self, BoxError> {
        match value {
            Value::List(items) => items.into_iter().map(T::from_value).collect(),
            other => Err(wrong("a list", &other)),
        }
    }
}

macro_rules! tuples {
    ($($len:literal: $($name:ident)+;)*) => { $(
        impl<$($name: Transfer),+> Transfer for ($($name,)+) {
            #[expect(non_snake_case, reason = "one name for a type and its value")]
            fn into_value(self) -> Value {
                let ($($name,)+) = self;
                Value::List(vec![$($name.into_value()),+])
            }

            fn from_value(value: Value) -> Result<Self, BoxError> {
                match value {
                    Value::List(items) if items.len() == $len => {
                        let mut items = items.into_iter();
                        Ok(($($name::from_value(items.next().unwrap_or(Value::None))?,)+))
                    }
                    other => Err(wrong(concat!("a list of ", $len), &other)),
                }
            }
        }
    )* };
}

tuples! {
    1: A;
    2: A B;
    3: A B C;
    4: A B C D;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let batch = vec![(1_i64, "a".to_owned()), (-2, String::new())];
        let value = batch.clone().into_value();
        assert_eq!(Vec::<(i64, String)>::from_value(value.clone()).unwrap(), batch);
        let error = Vec::<(i64, f64)>::from_value(value).unwrap_err();
        assert_eq!(error.to_string(), "expected a float, found a string");
        assert_eq!(u64::from_value(u64::MAX.into_value()).unwrap(), u64::MAX);
    }
}
