//! From an image to one place of a training batch.
//!
//! An [`ImageTransform`] is a definition: steps, and what the numbers look like at the end. A [`Worker`] carries it out, one image at a time.
//! Crops, flips and one resize that follow each other are not done one by one: they become a rectangle of the source, of which nothing else is
//! decoded, and rows that leave the resampler go through a table straight into the output. Pixels are those that Pillow and torchvision give for
//! the steps one after the other, bit for bit.

mod colour;
mod draw;
mod geometry;
mod run;
mod store;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;

use std::fmt;
use std::hash::{Hash, Hasher};

use super::resample::{Filter, Passes};
use super::{Channels, Deep, ImageError};
use crate::batch::DType;

pub use draw::{Drawn, Jitter};
pub use run::{Source, Worker};

/// Columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Size {
    /// The size of these values.
    pub const fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// What a resize makes of a size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// The shorter side becomes `size` and the other one keeps the ratio, rounded down, as in torchvision; if it exceeded `most`, it becomes
    /// that and the shorter side keeps the ratio.
    Short {
        /// Pixels of the shorter side.
        size: u32,
        /// At most so many of the longer one.
        most: Option<u32>,
    },
    /// This size.
    Exact(Size),
    /// The largest size of the same ratio that fits, in the middle of this size; what is left over is filled. As Pillow's `ImageOps.pad`.
    Letterbox(Size, Fill),
    /// This size, out of the largest part in the middle that has its ratio. As Pillow's `ImageOps.fit`.
    Fit(Size),
}

/// The value of each channel.
pub type Fill = [u8; 4];

/// What lies outside of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PadMode {
    /// One colour.
    #[default]
    Constant,
    /// The outermost pixels, again and again.
    Edge,
    /// The image mirrored at its outermost pixels, which are not repeated.
    Reflect,
    /// The image mirrored at its edge.
    Symmetric,
}

impl PadMode {
    /// NumPy's and torchvision's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Edge => "edge",
            Self::Reflect => "reflect",
            Self::Symmetric => "symmetric",
        }
    }

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Constant, Self::Edge, Self::Reflect, Self::Symmetric]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

/// Pixels on each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Padding {
    /// Columns left of the image.
    pub left: u32,
    /// Rows above it.
    pub top: u32,
    /// Columns right of it.
    pub right: u32,
    /// Rows below it.
    pub bottom: u32,
    /// Their colour, where the mode is constant.
    pub fill: Fill,
    /// What they show.
    pub mode: PadMode,
}

impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{} ", self.left, self.top, self.right, self.bottom)?;
        match self.mode {
            PadMode::Constant => write!(f, "{:?}", self.fill),
            mode => f.write_str(mode.name()),
        }
    }
}

/// From where to where a factor of colour jitter is drawn.
pub type Span = Option<(f64, f64)>;

/// One step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// A rectangle of a random area and ratio, resized. torchvision's `RandomResizedCrop`.
    RandomResizedCrop {
        /// Of the result.
        size: Size,
        /// Smallest and largest share of the image's area.
        scale: (f64, f64),
        /// Smallest and largest width / height.
        ratio: (f64, f64),
        /// How it is resized.
        filter: Filter,
    },
    /// Another size.
    Resize {
        /// Which.
        to: Target,
        /// How.
        filter: Filter,
    },
    /// The middle; black around an image that is smaller.
    CenterCrop(Size),
    /// A rectangle anywhere.
    RandomCrop {
        /// Of the rectangle.
        size: Size,
        /// What is put around the image first.
        padding: Option<Padding>,
        /// Whether an image that is too small is padded as well, on both sides, with black or by this mode.
        if_needed: Option<(PadMode, Fill)>,
    },
    /// More pixels around.
    Pad(Padding),
    /// Left becomes right, with this chance.
    HorizontalFlip(f64),
    /// Above becomes below, with this chance.
    VerticalFlip(f64),
    /// Factors of brightness, contrast and saturation and a shift of the hue (in turns, from -0.5 to 0.5), in random order.
    ColorJitter {
        /// 1 changes nothing.
        brightness: Span,
        /// 1 changes nothing.
        contrast: Span,
        /// 1 changes nothing.
        saturation: Span,
        /// 0 changes nothing but what the way to HSV and back rounds.
        hue: Span,
        /// The chance that it is done at all.
        chance: Option<f64>,
    },
    /// Luma, in one channel or three times.
    Grayscale(usize),
    /// Luma in as many channels as there are, with this chance.
    RandomGrayscale(f64),
}

impl Step {
    /// Whether it draws random numbers.
    pub fn is_random(&self) -> bool {
        matches!(
            self,
            Self::RandomResizedCrop { .. }
                | Self::RandomCrop { .. }
                | Self::HorizontalFlip(_)
                | Self::VerticalFlip(_)
                | Self::ColorJitter { .. }
                | Self::RandomGrayscale(_)
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RandomResizedCrop {
                size,
                scale,
                ratio,
                filter,
            } => write!(
                f,
                "random_resized_crop({size}, scale={}..{}, ratio={}..{}, {})",
                scale.0,
                scale.1,
                ratio.0,
                ratio.1,
                filter.name()
            ),
            Self::Resize { to, filter } => match to {
                Target::Short { size, most: None } => write!(f, "resize(short={size}, {})", filter.name()),
                Target::Short { size, most: Some(most) } => {
                    write!(f, "resize(short={size}, most={most}, {})", filter.name())
                }
                Target::Exact(size) => write!(f, "resize({size}, {})", filter.name()),
                Target::Fit(size) => write!(f, "fit({size}, {})", filter.name()),
                Target::Letterbox(size, fill) => write!(f, "letterbox({size}, fill={fill:?}, {})", filter.name()),
            },
            Self::CenterCrop(size) => write!(f, "center_crop({size})"),
            Self::RandomCrop {
                size,
                padding,
                if_needed,
            } => {
                write!(f, "random_crop({size}")?;
                if let Some(padding) = padding {
                    write!(f, ", padding={padding}")?;
                }
                if let Some((mode, fill)) = if_needed {
                    write!(f, ", if needed {} {fill:?}", mode.name())?;
                }
                f.write_str(")")
            }
            Self::Pad(padding) => write!(f, "pad({padding})"),
            Self::HorizontalFlip(chance) => write!(f, "horizontal_flip({chance})"),
            Self::VerticalFlip(chance) => write!(f, "vertical_flip({chance})"),
            Self::ColorJitter {
                brightness,
                contrast,
                saturation,
                hue,
                chance,
            } => {
                let mut parts: Vec<String> = [
                    ("brightness", brightness),
                    ("contrast", contrast),
                    ("saturation", saturation),
                    ("hue", hue),
                ]
                .iter()
                .filter_map(|(name, span)| span.map(|(a, b)| format!("{name}={a}..{b}")))
                .collect();
                parts.extend(chance.map(|chance| format!("chance={chance}")));
                write!(f, "color_jitter({})", parts.join(", "))
            }
            Self::Grayscale(channels) => write!(f, "grayscale({channels})"),
            Self::RandomGrayscale(chance) => write!(f, "random_grayscale({chance})"),
        }
    }
}

/// Where the channels of a pixel lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// One plane for each channel: (channels, rows, columns).
    #[default]
    Planes,
    /// Side by side: (rows, columns, channels).
    Pixels,
}

/// What 0 to 255 becomes as a float.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scale {
    /// Itself.
    Keep,
    /// A 255th, by division: torchvision's `ToTensor`.
    #[default]
    Divide,
    /// A 255th, by multiplication with 1/255, which is another number in half of the cases: torchvision's v2 `ToDtype(scale=True)`.
    Multiply,
}

/// What the numbers look like at the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// `U8`, `F16`, `BF16` or `F32`.
    pub dtype: DType,
    /// Planes or pixels.
    pub layout: Layout,
    /// For floats.
    pub scale: Scale,
    /// Means and standard deviations of the channels, for floats: `(x - mean) / std`, computed in single precision after the scale.
    pub normalise: Option<(Vec<f32>, Vec<f32>)>,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            dtype: DType::U8,
            layout: Layout::Pixels,
            scale: Scale::default(),
            normalise: None,
        }
    }
}

/// Why a transform cannot be, or cannot be applied to an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// The image could not be decoded.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A definition that means nothing.
    #[error("{0}")]
    Definition(String),
    /// An image, parameters or an output that the definition does not fit.
    #[error("{0}")]
    Mismatch(String),
}

/// A definition: which steps, and what comes out.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageTransform {
    channels: Channels,
    steps: Vec<Step>,
    output: Output,
    passes: Passes,
    /// How many times larger than what comes out a JPEG stays that is decoded smaller; none is, without it.
    shrink: Option<f32>,
    deep: Deep,
}

impl Default for ImageTransform {
    fn default() -> Self {
        Self {
            channels: Channels::Rgb,
            steps: Vec::new(),
            output: Output::default(),
            passes: Passes::default(),
            shrink: None,
            deep: Deep::default(),
        }
    }
}

impl Eq for ImageTransform {}

impl Hash for ImageTransform {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_string().hash(state);
    }
}

impl ImageTransform {
    /// No steps; images are decoded to these channels, and come out as they are.
    ///
    /// # Errors
    /// `Channels::AsStored`: the number of channels has to be known.
    pub fn new(channels: Channels) -> Result<Self, TransformError> {
        if channels == Channels::AsStored {
            return Err(TransformError::Definition(
                "a transform decodes to a fixed number of channels: Gray, Rgb or Rgba".into(),
            ));
        }
        Ok(Self {
            channels,
            ..Self::default()
        })
    }

    /// One step more.
    ///
    /// # Errors
    /// Values that mean nothing.
    pub fn step(mut self, step: Step) -> Result<Self, TransformError> {
        draw::check(&step, self.output_channels())?;
        self.steps.push(step);
        Ok(self)
    }

    /// Another output.
    ///
    /// # Errors
    /// A dtype that is none of the four, means of another number than the channels, a standard deviation of 0, normalised whole numbers.
    pub fn output(mut self, output: Output) -> Result<Self, TransformError> {
        store::check(&output, self.output_channels())?;
        self.output = output;
        Ok(self)
    }

    /// Which pass of a resize comes first.
    #[must_use]
    pub fn passes(mut self, passes: Passes) -> Self {
        self.passes = passes;
        self
    }

    /// Whether a JPEG may be decoded at a half, a quarter or an eighth, as long as what is resized stays `gap` times as large in each
    /// direction as what comes out: quicker, and not the same pixels. Pillow's `reducing_gap`, whose 2 leaves most of the filtering to the resize.
    ///
    /// # Errors
    /// A gap below 1, or none that is a number.
    pub fn shrink(mut self, gap: Option<f32>) -> Result<Self, TransformError> {
        if let Some(gap) = gap
            && (!gap.is_finite() || gap < 1.0)
        {
            let message = format!("reducing_gap is a number from 1 on, not {gap}");
            return Err(TransformError::Definition(message));
        }
        self.shrink = gap;
        Ok(self)
    }

    /// What becomes of 16 bits a channel, before the first step.
    #[must_use]
    pub fn deep(mut self, deep: Deep) -> Self {
        self.deep = deep;
        self
    }

    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Channels of a decoded image.
    pub fn input_channels(&self) -> usize {
        match self.channels {
            Channels::Gray => 1,
            Channels::Rgba => 4,
            Channels::AsStored | Channels::Rgb => 3,
        }
    }

    /// Channels of what comes out.
    pub fn output_channels(&self) -> usize {
        self.steps
            .iter()
            .fold(self.input_channels(), |channels, step| match step {
                Step::Grayscale(channels) => *channels,
                _ => channels,
            })
    }

    /// The type and layout of what comes out.
    pub fn output_kind(&self) -> &Output {
        &self.output
    }

    /// The size of what comes out, where it does not depend on the image.
    pub fn fixed_size(&self) -> Option<Size> {
        self.steps.iter().fold(None, |size, step| geometry::fixed(step, size))
    }

    /// The size of what comes out of an image of this size.
    ///
    /// # Errors
    /// An image that is too small for a random crop.
    pub fn size_of(&self, image: Size) -> Result<Size, TransformError> {
        self.steps
            .iter()
            .try_fold(image, |size, step| geometry::after(step, size))
    }

    /// Bytes of an output of this size.
    pub fn bytes(&self, size: Size) -> usize {
        size.width as usize * size.height as usize * self.output_channels() * self.output.dtype.size()
    }
}

impl fmt::Display for ImageTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = match self.channels {
            Channels::Gray => "L",
            Channels::Rgba => "RGBA",
            Channels::AsStored | Channels::Rgb => "RGB",
        };
        write!(f, "decode({channels})")?;
        for step in &self.steps {
            write!(f, " | {step}")?;
        }
        let layout = match self.output.layout {
            Layout::Planes => "CHW",
            Layout::Pixels => "HWC",
        };
        write!(f, " | {} {layout}", self.output.dtype.name())?;
        if self.output.dtype != DType::U8 {
            f.write_str(match self.output.scale {
                Scale::Keep => "",
                Scale::Divide => " / 255",
                Scale::Multiply => " * (1 / 255)",
            })?;
        }
        if let Some((mean, std)) = &self.output.normalise {
            write!(f, " normalize(mean={mean:?}, std={std:?})")?;
        }
        if self.passes == Passes::Pillow12 {
            f.write_str(" passes=pillow-12")?;
        }
        if let Some(gap) = self.shrink {
            write!(f, " shrink=dct reducing_gap={gap}")?;
        }
        match self.deep {
            Deep::Upper => {}
            Deep::Clip => f.write_str(" deep=clip")?,
            Deep::Scale => f.write_str(" deep=scale")?,
        }
        Ok(())
    }
}
