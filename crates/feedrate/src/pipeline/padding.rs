//! What fills tensors up.

use std::fmt;

use crate::batch::DType;
use crate::error::BoxError;

/// A number that stands where there is nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// A whole one.
    Whole(i64),
    /// Any other one.
    Real(f64),
}

impl Fill {
    /// One element of this type. An error names both where it does not fit.
    pub(super) fn bytes(self, dtype: DType) -> Result<Vec<u8>, BoxError> {
        let unfit = || BoxError::from(format!("padding {self} does not fit into {dtype}"));
        let whole = || match self {
            Self::Whole(number) => Ok(number),
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and in between")]
            Self::Real(number) if number.fract() == 0.0 && number.abs() < 9e18 => Ok(number as i64),
            Self::Real(_) => Err(unfit()),
        };
        #[expect(clippy::cast_precision_loss, reason = "as in Python")]
        let real = match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        };
        macro_rules! whole {
            ($type:ty) => {
                <$type>::try_from(whole()?)
                    .map_err(|_| unfit())?
                    .to_ne_bytes()
                    .to_vec()
            };
        }
        Ok(match dtype {
            DType::U8 => whole!(u8),
            DType::I8 => whole!(i8),
            DType::U16 => whole!(u16),
            DType::I16 => whole!(i16),
            DType::U32 => whole!(u32),
            DType::I32 => whole!(i32),
            DType::U64 => whole!(u64),
            DType::I64 => whole!(i64),
            #[expect(clippy::cast_possible_truncation, reason = "rounded, as in Python")]
            DType::F32 if real.is_finite() && (real as f32).is_infinite() => return Err(unfit()),
            #[expect(clippy::cast_possible_truncation, reason = "rounded, as in Python")]
            DType::F32 => (real as f32).to_ne_bytes().to_vec(),
            DType::F64 => real.to_ne_bytes().to_vec(),
            DType::Bool => match whole()? {
                0 => vec![0],
                1 => vec![1],
                _ => return Err(unfit()),
            },
            DType::F16 | DType::BF16 => {
                let bits = half(real, dtype == DType::F16).ok_or_else(unfit)?;
                bits.to_ne_bytes().to_vec()
            }
            _ if real == 0.0 => vec![0; dtype.size()],
            _ => return Err(format!("{dtype} can be padded with 0 only").into()),
        })
    }
}

/// The number of 16 bits (IEEE 754's binary16, or bfloat16) that is the nearest; none beyond the largest.
fn half(real: f64, ieee: bool) -> Option<u16> {
    // The bits of the exponent and of the fraction.
    let (exponent, fraction) = if ieee { (5, 10) } else { (8, 7) };
    let sign = u16::from(real.is_sign_negative()) << 15;
    let infinite = ((1_u16 << exponent) - 1) << fraction;
    if real.is_nan() {
        return Some(sign | infinite | 1 << (fraction - 1));
    }
    if real.is_infinite() {
        return Some(sign | infinite);
    }
    let bias = (1_i32 << (exponent - 1)) - 1;
    // What the bits stand for grows with them, so that a search finds the first one that is not below.
    let number = |bits: u16| {
        let (raw, part) = (i32::from(bits >> fraction), f64::from(bits & ((1 << fraction) - 1)));
        let whole = f64::from(1 << fraction);
        if raw == 0 {
            part / whole * 2_f64.powi(1 - bias)
        } else {
            (1.0 + part / whole) * 2_f64.powi(raw - bias)
        }
    };
    let (mut low, mut high) = (0, infinite);
    while low < high {
        let middle = low.midpoint(high);
        if number(middle) < real.abs() {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if low == infinite {
        return None;
    }
    // The nearer one; of two the even one.
    let above = number(low) - real.abs();
    let below = low.checked_sub(1).map_or(f64::INFINITY, |one| real.abs() - number(one));
    Some(
        sign | if above < below || (above <= below && low % 2 == 0) {
            low
        } else {
            low - 1
        },
    )
}

impl From<i64> for Fill {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Fill {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number:?}"),
        }
    }
}

/// What tensors of different shapes are filled up with to the largest of every dimension.
///
/// ```
/// use feedrate::pipeline::{Fill, Padding};
///
/// let padding = Padding::with(0).field("labels", -100);
/// assert_eq!(padding.of("labels"), Fill::Whole(-100));
/// assert_eq!(padding.of("tokens"), Fill::Whole(0));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Padding {
    value: Fill,
    fields: Vec<(String, Fill)>,
}

impl Padding {
    /// With this.
    pub fn with(value: impl Into<Fill>) -> Self {
        Self {
            value: value.into(),
            fields: Vec::new(),
        }
    }

    /// And this field with that. Elements without such a field are an error.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Fill>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// What fills this field up.
    pub fn of(&self, name: &str) -> Fill {
        let own = self.fields.iter().rfind(|(have, _)| have == name);
        own.map_or(self.value, |(_, value)| *value)
    }

    /// The fields that were named.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }
}

/// With zeros.
impl Default for Padding {
    fn default() -> Self {
        Self::with(0)
    }
}

/// As in a definition, behind what else there is; nothing for zeros.
impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        write!(f, ", padding={}", self.value)?;
        for (name, value) in &self.fields {
            write!(f, ", padding of {name:?}={value}")?;
        }
        Ok(())
    }
}
