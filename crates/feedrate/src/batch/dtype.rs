//! Element types.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $size:literal;)*) => {
        /// The type of a tensor's elements: all of PyTorch's that are not quantized.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DType { $($(#[$doc])* $variant = $code,)* }

        impl DType {
            /// All of them.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// Size of one element in bytes.
            pub const fn size(self) -> usize {
                match self { $(Self::$variant => $size,)* }
            }

            /// PyTorch's name, without `torch.`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of this name.
            ///
            /// ```
            /// use feedrate::batch::DType;
            /// assert_eq!(DType::from_name("bfloat16"), Some(DType::BF16));
            /// ```
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// The type with this [`code`](DType::code).
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    /// Truth values, one byte each, 0 or 1.
    Bool = 0, "bool", 1;
    /// Unsigned 8-bit integers.
    U8 = 1, "uint8", 1;
    /// Signed 8-bit integers.
    I8 = 2, "int8", 1;
    /// Unsigned 16-bit integers.
    U16 = 3, "uint16", 2;
    /// Signed 16-bit integers.
    I16 = 4, "int16", 2;
    /// Unsigned 32-bit integers.
    U32 = 5, "uint32", 4;
    /// Signed 32-bit integers.
    I32 = 6, "int32", 4;
    /// Unsigned 64-bit integers.
    U64 = 7, "uint64", 8;
    /// Signed 64-bit integers.
    I64 = 8, "int64", 8;
    /// IEEE half precision.
    F16 = 9, "float16", 2;
    /// The upper half of an IEEE single.
    BF16 = 10, "bfloat16", 2;
    /// IEEE single precision.
    F32 = 11, "float32", 4;
    /// IEEE double precision.
    F64 = 12, "float64", 8;
    /// Pairs of `float16`.
    Complex32 = 13, "complex32", 4;
    /// Pairs of `float32`.
    Complex64 = 14, "complex64", 8;
    /// Pairs of `float64`.
    Complex128 = 15, "complex128", 16;
    /// 8-bit floats: 4 exponent bits, finite.
    F8E4M3Fn = 16, "float8_e4m3fn", 1;
    /// 8-bit floats: 5 exponent bits.
    F8E5M2 = 17, "float8_e5m2", 1;
    /// 8-bit floats: 4 exponent bits, finite, one zero.
    F8E4M3Fnuz = 18, "float8_e4m3fnuz", 1;
    /// 8-bit floats: 5 exponent bits, finite, one zero.
    F8E5M2Fnuz = 19, "float8_e5m2fnuz", 1;
    /// 8-bit exponents, for scales.
    F8E8M0Fnu = 20, "float8_e8m0fnu", 1;
    /// Two 4-bit floats in a byte.
    F4E2M1FnX2 = 21, "float4_e2m1fn_x2", 1;
}

impl DType {
    /// A number that stays the same between versions, for storage and messages.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "that is what seals a trait")]
    pub trait Sealed {}
}

/// Rust types that are elements of tensors. Types that Rust has not (halves, 8-bit floats) are reached as bytes.
pub trait Element:
    bytemuck::NoUninit + bytemuck::CheckedBitPattern + sealed::Sealed + PartialEq + Send + Sync + 'static
{
    /// Their type in a tensor.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type { const DTYPE: DType = DType::$dtype; }
    )* };
}

elements! {
    bool => Bool, u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64
}

/// A half-precision float (IEEE 754).
pub(crate) fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * (-24_f64).exp2(),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1024.0 + fraction) * f64::from(exponent - 25).exp2(),
    };
    if bits >> 15 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(*dtype));
            assert_eq!(DType::from_code(dtype.code()), Some(*dtype));
        }
        assert_eq!(DType::from_name("float"), None);
        assert_eq!(DType::from_code(200), None);
        assert_eq!(<f64 as Element>::DTYPE.size(), size_of::<f64>());
    }

    #[test]
    fn halves_are_exact() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_477_539_063e-8),
            (0x8000, -0.0),
        ] {
            assert_eq!(half(bits).to_bits(), f64::to_bits(value), "{bits:x}");
        }
        assert!(half(0x7e00).is_nan() && half(0xfc00) == f64::NEG_INFINITY);
    }
}
