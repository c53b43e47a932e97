//! Bytes to numbers of the output, by tables: one lookup for each value.

#[cfg(target_arch = "x86_64")]
use super::wide;
use super::{ImageTransform, Layout, Output, Scale, Size, TransformError};
use crate::batch::DType;

pub(super) fn check(output: &Output, channels: usize) -> Result<(), TransformError> {
    let wrong = |message: String| Err(TransformError::Definition(message));
    if !matches!(output.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32) {
        return wrong(format!(
            "images come out as uint8, float16, bfloat16 or float32, not as {}",
            output.dtype.name()
        ));
    }
    let Some((mean, std)) = &output.normalise else {
        return Ok(());
    };
    if output.dtype == DType::U8 {
        return wrong("whole numbers cannot be normalised: take a float dtype".into());
    }
    for (name, values) in [("mean", mean), ("std", std)] {
        if values.len() != channels && values.len() != 1 {
            return wrong(format!(
                "{name} has {} values, and images have {channels} channels",
                values.len()
            ));
        }
    }
    if std.contains(&0.0) {
        return wrong(format!("a standard deviation of 0 would divide by zero: std={std:?}"));
    }
    Ok(())
}

/// The upper half of a single, rounded to even.
fn bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = if value.is_nan() {
        bits | 0x40_0000
    } else {
        bits.wrapping_add(0x7fff + ((bits >> 16) & 1))
    };
    upper(rounded)
}

fn upper(bits: u32) -> u16 {
    let [_, _, low, high] = bits.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// IEEE half precision, rounded to even.
fn float16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = upper(bits) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // From 65520 on it rounds to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    let low = |word: u32| u16::from_le_bytes([word.to_le_bytes()[0], word.to_le_bytes()[1]]);
    if magnitude < 0x3880_0000 {
        // Below the smallest normal number: in units of 2⁻²⁴. The sum rounds to even as singles do.
        let units = f32::from_bits(magnitude) + 0.5;
        return sign | low(units.to_bits().wrapping_sub(0.5_f32.to_bits()));
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    sign | low((rounded - 0x3800_0000) >> 13)
}

/// What each byte becomes, by channel.
#[derive(Debug, Clone)]
enum Tables {
    Bytes,
    Halves(Vec<[u16; 256]>),
    Singles(Vec<[u32; 256]>),
}

/// How an output is written.
#[derive(Debug, Clone)]
pub(super) struct Store {
    tables: Tables,
    layout: Layout,
    channels: usize,
    /// Whether rows of RGB go the wide way.
    #[cfg(target_arch = "x86_64")]
    wide: bool,
    /// The tables of singles as arithmetic.
    #[cfg(target_arch = "x86_64")]
    formula: Option<wide::Formula>,
}

impl Store {
    pub(super) fn new(transform: &ImageTransform) -> Self {
        let output = transform.output_kind();
        let channels = transform.output_channels();
        let single = |channel: usize, byte: u8| {
            let value = f32::from(byte);
            let value = match output.scale {
                Scale::Keep => value,
                Scale::Divide => value / 255.0,
                Scale::Multiply => value * (1.0 / 255.0_f32),
            };
            let of = |values: &[f32]| values[channel.min(values.len() - 1)];
            output
                .normalise
                .as_ref()
                .map_or(value, |(mean, std)| (value - of(mean)) / of(std))
        };
        let halves = |narrow: fn(f32) -> u16| {
            (0..channels)
                .map(|channel| std::array::from_fn(|byte| narrow(single(channel, byte.to_le_bytes()[0]))))
                .collect()
        };
        let tables = match output.dtype {
            DType::F16 => Tables::Halves(halves(float16)),
            DType::BF16 => Tables::Halves(halves(bfloat16)),
            DType::F32 => Tables::Singles(
                (0..channels)
                    .map(|channel| std::array::from_fn(|byte| single(channel, byte.to_le_bytes()[0]).to_bits()))
                    .collect(),
            ),
            _ => Tables::Bytes,
        };
        Self {
            #[cfg(target_arch = "x86_64")]
            wide: wide::available() && channels == 3,
            #[cfg(target_arch = "x86_64")]
            formula: match &tables {
                Tables::Singles(tables) => {
                    let of = |values: &[f32], channel: usize| values[channel.min(values.len() - 1)];
                    let normalise = output.normalise.as_ref();
                    let normalise =
                        normalise.map(|(mean, std)| [0, 1, 2].map(|channel| (of(mean, channel), of(std, channel))));
                    wide::Formula::new(output.scale, normalise, tables)
                }
                _ => None,
            },
            tables,
            layout: output.layout,
            channels,
        }
    }

    /// The usual cases, if the processor is a usual one.
    #[cfg(target_arch = "x86_64")]
    fn wide_row(&self, out: &mut [u8], place: &Place, row: &[u8]) -> bool {
        if !self.wide || place.width < 16 {
            return false;
        }
        let columns = place.y * place.width..(place.y + 1) * place.width;
        match (&self.tables, self.layout) {
            (Tables::Bytes, Layout::Pixels) => {
                wide::mirror(row, &mut out[place.y * row.len()..(place.y + 1) * row.len()]);
            }
            (Tables::Bytes, Layout::Planes) => {
                wide::bytes(
                    row,
                    planes(out, place.plane).map(|plane| &mut plane[columns.clone()]),
                    place.mirrored,
                );
            }
            (Tables::Singles(_), Layout::Planes) => {
                let (Some(formula), Ok(out)) = (&self.formula, bytemuck::try_cast_slice_mut(out)) else {
                    return false;
                };
                let planes = planes(out, place.plane).map(|plane| &mut plane[columns.clone()]);
                wide::singles(formula, row, planes, place.mirrored);
            }
            _ => return false,
        }
        true
    }

    /// One row of the output, from left to right, or from right to left.
    ///
    /// # Errors
    /// An output that is not aligned to its elements.
    pub(super) fn row(
        &self,
        out: &mut [u8],
        size: Size,
        y: usize,
        row: &[u8],
        mirrored: bool,
    ) -> Result<(), TransformError> {
        let place = Place {
            width: size.width as usize,
            plane: size.width as usize * size.height as usize,
            y,
            layout: self.layout,
            mirrored,
        };
        if matches!(self.tables, Tables::Bytes) && !mirrored && (self.layout == Layout::Pixels || self.channels == 1) {
            out[y * row.len()..(y + 1) * row.len()].copy_from_slice(row);
            return Ok(());
        }
        #[cfg(target_arch = "x86_64")]
        if self.wide_row(out, &place, row) {
            return Ok(());
        }
        match &self.tables {
            Tables::Bytes => place.write(out, row, self.channels, |_, byte| byte),
            Tables::Halves(tables) => {
                let out = bytemuck::try_cast_slice_mut(out).map_err(unaligned)?;
                place.write(out, row, self.channels, |channel, byte| {
                    tables[channel][usize::from(byte)]
                });
            }
            Tables::Singles(tables) => {
                let out: &mut [u32] = bytemuck::try_cast_slice_mut(out).map_err(unaligned)?;
                if let (Layout::Planes, [r, g, b]) = (self.layout, &tables[..]) {
                    place.planes(out, row, [r, g, b]);
                } else {
                    place.write(out, row, self.channels, |channel, byte| {
                        tables[channel][usize::from(byte)]
                    });
                }
            }
        }
        Ok(())
    }
}

/// The three planes of an output.
fn planes<T>(out: &mut [T], plane: usize) -> [&mut [T]; 3] {
    let (red, rest) = out.split_at_mut(plane);
    let (green, blue) = rest.split_at_mut(plane);
    [red, green, blue]
}

fn unaligned(error: bytemuck::PodCastError) -> TransformError {
    TransformError::Mismatch(format!("the output's memory is not aligned to its elements: {error}"))
}

struct Place {
    width: usize,
    plane: usize,
    y: usize,
    layout: Layout,
    mirrored: bool,
}

impl Place {
    fn write<T: Copy>(&self, out: &mut [T], row: &[u8], channels: usize, number: impl Fn(usize, u8) -> T) {
        let start = self.y * self.width;
        for (x, pixel) in row.chunks_exact(channels).enumerate() {
            let x = start + if self.mirrored { self.width - 1 - x } else { x };
            for (channel, byte) in pixel.iter().enumerate() {
                let at = match self.layout {
                    Layout::Planes => channel * self.plane + x,
                    Layout::Pixels => x * channels + channel,
                };
                out[at] = number(channel, *byte);
            }
        }
    }

    /// The usual case, with as few checks in the loop as it takes.
    fn planes<T: Copy>(&self, out: &mut [T], row: &[u8], [r, g, b]: [&[T; 256]; 3]) {
        let [red, green, blue] = planes(out, self.plane);
        let columns = self.y * self.width..(self.y + 1) * self.width;
        let out = red[columns.clone()]
            .iter_mut()
            .zip(&mut green[columns.clone()])
            .zip(&mut blue[columns]);
        let one = |((red, green), blue): ((&mut T, &mut T), &mut T), pixel: &[u8]| {
            *red = r[usize::from(pixel[0])];
            *green = g[usize::from(pixel[1])];
            *blue = b[usize::from(pixel[2])];
        };
        let pixels = row.chunks_exact(3);
        if self.mirrored {
            out.zip(pixels.rev()).for_each(|(out, pixel)| one(out, pixel));
        } else {
            out.zip(pixels).for_each(|(out, pixel)| one(out, pixel));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats() {
        for (value, half, brain) in [
            (0.0, 0, 0),
            (-0.0, 0x8000, 0x8000),
            (1.0, 0x3c00, 0x3f80),
            (-2.5, 0xc100, 0xc020),
            (65504.0, 0x7bff, 0x4780),
            (65520.0, 0x7c00, 0x4780),
            (5.960_464_5e-8, 1, 0x3380),
            (2.980_232_2e-8, 0, 0x3300),
            (6.097_555e-5, 0x03ff, 0x3880),
            (0.333_333_34, 0x3555, 0x3eab),
            (f32::INFINITY, 0x7c00, 0x7f80),
        ] {
            assert_eq!(float16(value), half, "{value}");
            assert_eq!(bfloat16(value), brain, "{value}");
        }
        assert!(float16(f32::NAN) & 0x7c00 == 0x7c00 && float16(f32::NAN) & 0x3ff != 0);
    }

    /// The usual normalisation goes the wide way: its arithmetic gives what the tables hold.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn formulas_are_taken() {
        let output = Output {
            dtype: DType::F32,
            layout: Layout::Planes,
            normalise: Some((vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225])),
            ..Output::default()
        };
        for scale in [Scale::Divide, Scale::Multiply, Scale::Keep] {
            let output = Output {
                scale,
                ..output.clone()
            };
            let store = Store::new(&ImageTransform::default().output(output).unwrap());
            assert_eq!(store.formula.is_some(), wide::available(), "{scale:?}");
        }
    }
}
