//! Resampling of 8-bit images, equal to Pillow's `Image.resize` bit for bit.
//!
//! As there: the weights of an output pixel are computed in double precision and rounded to 22 bits behind the point, rows and columns are
//! two passes, and what lies between the two is 8-bit. Sums are exact modulo 2³², so that the order in which they are made, and with it the
//! instructions used, cannot be seen in the result. Which pass comes first can be seen, in about one pixel of a hundred: [`Passes`].

#[cfg(target_arch = "x86_64")]
mod avx2;
mod nearest;
mod scalar;
#[cfg(test)]
mod tests;
mod weights;

use std::ops::Range;

use weights::Axis;

/// How pixels between pixels are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// The mean of the pixels under the output pixel.
    Box,
    /// A triangle as wide as the output pixel's distance; the default of torchvision.
    #[default]
    Bilinear,
    /// As bilinear, and sharper.
    Hamming,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// A windowed sinc of three lobes.
    Lanczos,
}

impl Filter {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Nearest,
        Self::Box,
        Self::Bilinear,
        Self::Hamming,
        Self::Bicubic,
        Self::Lanczos,
    ];

    /// Pillow's name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Box => "box",
            Self::Bilinear => "bilinear",
            Self::Hamming => "hamming",
            Self::Bicubic => "bicubic",
            Self::Lanczos => "lanczos",
        }
    }

    /// The filter of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|filter| filter.name() == name)
    }
}

/// Which pass comes first where there are two. What lies between them is rounded to 8 bits, so that the results differ by 1 or 2 here and there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Passes {
    /// As in Pillow 13 and newer: the vertical one where more than twice as many rows vanish as columns, else the horizontal one.
    #[default]
    Pillow13,
    /// Always the horizontal one, as in Pillow 2.7 to 12.
    Pillow12,
}

/// Pixels of 8 bits a channel, somewhere in memory: `height` rows of `width * channels` bytes, one every `stride` bytes.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The first byte is the first channel of the upper left pixel.
    pub data: &'a [u8],
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes of a pixel.
    pub channels: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
}

impl<'a> View<'a> {
    /// Rows without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than that.
    pub fn new(data: &'a [u8], width: usize, height: usize, channels: usize) -> Self {
        Self::with_stride(data, width, height, channels, width * channels)
    }

    /// Rows that begin every `stride` bytes.
    ///
    /// # Panics
    /// If `data` is shorter than that, or rows overlap.
    pub fn with_stride(data: &'a [u8], width: usize, height: usize, channels: usize, stride: usize) -> Self {
        assert!(stride >= width * channels, "rows overlap");
        assert!(
            height == 0 || data.len() >= (height - 1) * stride + width * channels,
            "{} bytes are too few for {height} rows of {width} pixels",
            data.len()
        );
        Self {
            data,
            width,
            height,
            channels,
            stride,
        }
    }

    /// The bytes of a row.
    pub fn row(&self, y: usize) -> &'a [u8] {
        &self.data[y * self.stride..][..self.width * self.channels]
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it is not inside.
    #[must_use]
    pub fn part(&self, columns: Range<usize>, rows: Range<usize>) -> Self {
        assert!(
            columns.start <= columns.end
                && columns.end <= self.width
                && rows.start <= rows.end
                && rows.end <= self.height
        );
        if columns.is_empty() || rows.is_empty() {
            return Self::with_stride(&[], columns.len(), 0, self.channels, self.stride);
        }
        let start = rows.start * self.stride + columns.start * self.channels;
        Self::with_stride(
            &self.data[start..],
            columns.len(),
            rows.len(),
            self.channels,
            self.stride,
        )
    }
}

/// Whether the kernels use wide instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernels {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Kernels {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        Self::Scalar
    }
}

/// What is reused from one image to the next.
#[derive(Debug)]
pub struct Scratch {
    between: Vec<u8>,
    made: Vec<u8>,
    row: Vec<u8>,
    premultiplied: Vec<u8>,
    kernels: Kernels,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            between: Vec::new(),
            made: Vec::new(),
            row: Vec::new(),
            premultiplied: Vec::new(),
            kernels: Kernels::best(),
        }
    }
}

impl Scratch {
    /// As on a processor without wide instructions.
    pub fn without_simd() -> Self {
        Self {
            kernels: Kernels::Scalar,
            ..Self::default()
        }
    }
}

/// One resize: of an image of a size, to a size, of which a window is wanted.
#[derive(Debug)]
pub struct Resize {
    how: How,
    window: (usize, usize),
    /// Columns and rows of the input that are read.
    source: (Range<usize>, Range<usize>),
}

#[derive(Debug)]
enum How {
    /// Across and down; `None` where a pass would change nothing: then what is read is what is wanted.
    Passes(Option<Axis>, Option<Axis>, First),
    Nearest(nearest::Table, nearest::Table),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Across,
    Down,
}

impl First {
    fn of(passes: Passes, from: (usize, usize), to: (usize, usize)) -> Self {
        let vanish = |from: usize, to: usize| from.saturating_sub(to);
        if passes == Passes::Pillow13 && vanish(from.1, to.1) > 2 * vanish(from.0, to.0) {
            Self::Down
        } else {
            Self::Across
        }
    }
}

impl Resize {
    /// From `from` pixels (width, height), of which `area` (left, upper, right, lower; fractions are allowed) becomes `to` pixels. Only
    /// `columns` and `rows` of the result are made. The weights are computed here.
    ///
    /// # Panics
    /// If a size is 0, `area` is not inside of the image, or the window is not inside of the result.
    pub fn new(
        (filter, passes): (Filter, Passes),
        from: (usize, usize),
        area: [f32; 4],
        to: (usize, usize),
        columns: Range<usize>,
        rows: Range<usize>,
    ) -> Self {
        assert!(
            from.0 > 0 && from.1 > 0 && to.0 > 0 && to.1 > 0,
            "an image without pixels"
        );
        assert!(columns.start < columns.end && columns.end <= to.0 && rows.start < rows.end && rows.end <= to.1);
        let [left, upper, right, lower] = area;
        assert!(
            left >= 0.0 && upper >= 0.0 && left < right && upper < lower,
            "no area: {area:?}"
        );
        #[expect(clippy::cast_precision_loss, reason = "sizes of images")]
        let whole = (from.0 as f32, from.1 as f32);
        assert!(
            right <= whole.0 && lower <= whole.1,
            "{area:?} is not inside of {from:?}"
        );
        let window = (columns.len(), rows.len());
        if filter == Filter::Nearest {
            let across = nearest::Table::new(from.0, left, right, to.0, columns);
            let down = nearest::Table::new(from.1, upper, lower, to.1, rows);
            let source = (across.span(), down.span());
            return Self {
                how: How::Nearest(across, down),
                window,
                source,
            };
        }
        #[expect(clippy::float_cmp, reason = "as Pillow asks")]
        let across = (to.0 != from.0 || left != 0.0 || right != whole.0)
            .then(|| Axis::new(filter, from.0, left, right, to.0, columns.clone()));
        #[expect(clippy::float_cmp, reason = "as Pillow asks")]
        let down = (to.1 != from.1 || upper != 0.0 || lower != whole.1)
            .then(|| Axis::new(filter, from.1, upper, lower, to.1, rows.clone()));
        let source = (
            across.as_ref().map_or(columns, Axis::span),
            down.as_ref().map_or(rows, Axis::span),
        );
        Self {
            how: How::Passes(across, down, First::of(passes, from, to)),
            window,
            source,
        }
    }

    /// All of an image, to all of another size.
    pub fn whole(how: (Filter, Passes), from: (usize, usize), to: (usize, usize)) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "sizes of images")]
        let area = [0.0, 0.0, from.0 as f32, from.1 as f32];
        Self::new(how, from, area, to, 0..to.0, 0..to.1)
    }

    /// The columns and rows of the input that are read.
    pub fn source(&self) -> (Range<usize>, Range<usize>) {
        self.source.clone()
    }

    /// Makes the rows of the window one after the other, from above, and gives each to `each` with its number.
    ///
    /// `input` holds what [`source`](Resize::source) says and nothing else. With four channels the last one is alpha: colours are weighted by
    /// it, as Pillow does.
    ///
    /// # Panics
    /// If the size of `input` is another.
    pub fn run(&self, input: View<'_>, scratch: &mut Scratch, each: &mut dyn FnMut(usize, &[u8])) {
        assert_eq!((input.width, input.height), (self.source.0.len(), self.source.1.len()));
        let bytes = self.window.0 * input.channels;
        match &self.how {
            How::Nearest(across, down) => nearest::run(input, across, down, &mut scratch.row, each),
            How::Passes(None, None, _) => (0..input.height).for_each(|y| each(y, input.row(y))),
            How::Passes(across, down, first) => {
                let passes = Both {
                    across: across.as_ref(),
                    down: down.as_ref(),
                    first: *first,
                    window: self.window,
                };
                if input.channels == 4 {
                    let mut premultiplied = std::mem::take(&mut scratch.premultiplied);
                    premultiply(input, &mut premultiplied);
                    let mut clear = vec![0; bytes];
                    let view = View::new(&premultiplied, input.width, input.height, 4);
                    passes.run(view, scratch, &mut |y, row| {
                        unpremultiply(row, &mut clear);
                        each(y, &clear);
                    });
                    scratch.premultiplied = premultiplied;
                } else {
                    passes.run(input, scratch, each);
                }
            }
        }
    }
}

/// The passes of a resize.
#[derive(Clone, Copy)]
struct Both<'a> {
    across: Option<&'a Axis>,
    down: Option<&'a Axis>,
    first: First,
    window: (usize, usize),
}

impl Both<'_> {
    fn run(self, input: View<'_>, scratch: &mut Scratch, each: &mut dyn FnMut(usize, &[u8])) {
        let Scratch {
            between,
            made,
            row,
            kernels,
            ..
        } = scratch;
        match (self.across, self.down, self.first) {
            (Some(across), Some(down), First::Down) => {
                let stride = room(input.width * input.channels);
                grow(between, stride * self.window.1);
                for y in 0..self.window.1 {
                    kernels.vertical(input, down, y, &mut between[y * stride..(y + 1) * stride]);
                }
                let between = View::with_stride(between, input.width, self.window.1, input.channels, stride);
                let made = kernels.horizontal(between, across, made, self.window.0);
                (0..made.height).for_each(|y| each(y, made.row(y)));
            }
            (Some(across), None, _) => {
                let made = kernels.horizontal(input, across, made, self.window.0);
                (0..made.height).for_each(|y| each(y, made.row(y)));
            }
            (Some(across), Some(down), First::Across) => {
                let between = kernels.horizontal(input, across, between, self.window.0);
                kernels.rows(between, down, self.window.1, row, each);
            }
            (None, Some(down), _) => kernels.rows(input, down, self.window.1, row, each),
            (None, None, _) => (0..input.height).for_each(|y| each(y, input.row(y))),
        }
    }
}

/// Bytes of a row with room behind it, so that the kernels may write whole registers.
fn room(bytes: usize) -> usize {
    bytes.next_multiple_of(32) + 32
}

impl Kernels {
    /// All rows, of another width.
    fn horizontal<'a>(self, input: View<'_>, axis: &Axis, out: &'a mut Vec<u8>, width: usize) -> View<'a> {
        let stride = room(width * input.channels);
        grow(out, stride * input.height);
        match self {
            Self::Scalar => scalar::horizontal(input, axis, out, stride, 0..width),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::horizontal(input, axis, out, stride, width),
        }
        View::with_stride(out, width, input.height, input.channels, stride)
    }

    /// One row of another height.
    fn vertical(self, input: View<'_>, axis: &Axis, y: usize, out: &mut [u8]) {
        match self {
            Self::Scalar => scalar::vertical(input, axis, y, out, 0),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::vertical(input, axis, y, out),
        }
    }

    /// All rows of another height, one after the other.
    fn rows(self, input: View<'_>, axis: &Axis, height: usize, row: &mut Vec<u8>, each: &mut dyn FnMut(usize, &[u8])) {
        let bytes = input.width * input.channels;
        grow(row, room(bytes));
        for y in 0..height {
            self.vertical(input, axis, y, row);
            each(y, &row[..bytes]);
        }
    }
}

fn grow(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
}

/// Pillow's RGBA to RGBa.
fn premultiply(input: View<'_>, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(input.width * input.height * 4);
    for y in 0..input.height {
        for pixel in input.row(y).chunks_exact(4) {
            let alpha = u32::from(pixel[3]);
            let times = |value: u8| {
                let product = u32::from(value) * alpha + 128;
                low_byte(((product >> 8) + product) >> 8)
            };
            out.extend_from_slice(&[times(pixel[0]), times(pixel[1]), times(pixel[2]), pixel[3]]);
        }
    }
}

/// Pillow's RGBa to RGBA.
fn unpremultiply(row: &[u8], out: &mut [u8]) {
    for (pixel, out) in row.chunks_exact(4).zip(out.chunks_exact_mut(4)) {
        let alpha = u32::from(pixel[3]);
        if alpha == 0 || alpha == 255 {
            out.copy_from_slice(pixel);
        } else {
            let divided = |value: u8| low_byte((255 * u32::from(value) / alpha).min(255));
            out.copy_from_slice(&[divided(pixel[0]), divided(pixel[1]), divided(pixel[2]), pixel[3]]);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "at most 255")]
fn low_byte(value: u32) -> u8 {
    value as u8
}
