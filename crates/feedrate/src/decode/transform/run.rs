//! Carrying a transform out: as little as possible is decoded, and as late as possible.

use super::store::Store;
use super::{Drawn, ImageTransform, Jitter, Padding, Size, Step, Target, TransformError, colour, geometry};
use crate::decode::resample::{Filter, Resize, Scratch, View};
use crate::decode::{Decoder, Format, Options, Rect, info};

/// Where an image comes from.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A file's bytes.
    Encoded(&'a [u8]),
    /// Pixels, of as many channels as the transform decodes to.
    Pixels(View<'a>),
}

impl Source<'_> {
    /// Columns and rows, as the header says.
    ///
    /// # Errors
    /// Bytes that are no image; pixels without any.
    pub fn size(&self) -> Result<Size, TransformError> {
        match self {
            Self::Encoded(bytes) => {
                let info = info(bytes)?;
                Ok(Size::new(info.width, info.height))
            }
            Self::Pixels(view) => match (u32::try_from(view.width), u32::try_from(view.height)) {
                (Ok(width), Ok(height)) if width > 0 && height > 0 => Ok(Size::new(width, height)),
                _ => Err(TransformError::Mismatch(format!(
                    "an image has at least 1 x 1 pixels, and this one {} x {}",
                    view.width, view.height
                ))),
            },
        }
    }
}

/// Carries transforms out, one image after the other, and keeps what can be used again. One for each thread.
#[derive(Debug, Default)]
pub struct Worker {
    decoder: Decoder,
    scratch: Scratch,
    decoded: Vec<u8>,
    pixels: Vec<u8>,
    spare: Vec<u8>,
    store: Option<(ImageTransform, Store)>,
}

/// What is known of the image before anything is done: a part of something, perhaps mirrored.
#[derive(Debug, Clone, Copy)]
struct Lazy {
    base: Base,
    /// Of the base.
    window: Rect,
    across: bool,
    down: bool,
}

#[derive(Debug, Clone, Copy)]
enum Base {
    /// The source, or with `true` the pixels that were made last.
    Whole(bool),
    /// A rectangle of one of those, at another size.
    Resized(Resized),
}

#[derive(Debug, Clone, Copy)]
struct Resized {
    made: bool,
    rect: Rect,
    /// Which part of the rectangle.
    area: [f32; 4],
    filter: Filter,
    to: Size,
}

impl Lazy {
    fn whole(made: bool, size: Size) -> Self {
        Self {
            base: Base::Whole(made),
            window: Rect::new(0, 0, size.width, size.height),
            across: false,
            down: false,
        }
    }

    fn size(&self) -> Size {
        Size::new(self.window.width, self.window.height)
    }

    /// A part of what is seen, which is mirrored already.
    fn crop(&mut self, rect: Rect) {
        let window = &mut self.window;
        let from = |mirrored: bool, length: u32, at: u32, part: u32| if mirrored { length - at - part } else { at };
        window.x += from(self.across, window.width, rect.x, rect.width);
        window.y += from(self.down, window.height, rect.y, rect.height);
        (window.width, window.height) = (rect.width, rect.height);
    }
}

/// What takes rows, each with its place.
type Sink<'a> = dyn FnMut(usize, &[u8]) -> Result<(), TransformError> + 'a;

/// All that one image needs.
struct Job<'a> {
    worker: &'a mut Worker,
    transform: &'a ImageTransform,
    source: Source<'a>,
    /// Of the pixels that were made last.
    made: (Size, usize),
    state: Lazy,
}

impl Worker {
    /// A worker, which costs nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one image into `out`, whose length is that of the output. `size` is that of the source, and `drawn` what was drawn for it, one for each
    /// random step.
    ///
    /// # Errors
    /// An image that cannot be decoded, or whose size is another; parameters and an output that do not fit.
    pub fn run(
        &mut self,
        transform: &ImageTransform,
        source: Source<'_>,
        size: Size,
        drawn: &[Drawn],
        out: &mut [u8],
    ) -> Result<(), TransformError> {
        if self.store.as_ref().is_none_or(|(of, _)| of != transform) {
            self.store = Some((transform.clone(), Store::new(transform)));
        }
        if let Source::Pixels(view) = source
            && (view.channels != transform.input_channels() || source.size()? != size)
        {
            return Err(TransformError::Mismatch(format!(
                "the transform takes {} channels and {size} pixels, and these are {} x {} pixels of {} channels",
                transform.input_channels(),
                view.width,
                view.height,
                view.channels
            )));
        }
        let mut job = Job {
            worker: self,
            transform,
            source,
            made: (Size::new(0, 0), 0),
            state: Lazy::whole(false, size),
        };
        let mut drawn = drawn.iter();
        for step in transform.steps() {
            let drawn = if step.is_random() {
                drawn.next()
            } else {
                Some(&Drawn::Done(true))
            };
            let drawn =
                drawn.ok_or_else(|| TransformError::Mismatch(format!("no parameters were drawn for {step}")))?;
            job.step(step, drawn)?;
        }
        job.finish(out)
    }
}

impl Job<'_> {
    fn step(&mut self, step: &Step, drawn: &Drawn) -> Result<(), TransformError> {
        let size = self.state.size();
        match (step, drawn) {
            (Step::RandomResizedCrop { size: to, filter, .. }, Drawn::Crop(rect)) => {
                self.crop(step, *rect)?;
                self.resize(*to, *filter, geometry::whole(Size::new(rect.width, rect.height)))
            }
            (Step::Resize { to, filter }, _) => {
                let inner = geometry::resized(to, size);
                self.resize(inner, *filter, geometry::area(to, size))?;
                if let Target::Letterbox(whole, fill) = to
                    && let Some(bars) = geometry::bars(*whole, inner, *fill)
                {
                    self.pad(&bars)?;
                }
                Ok(())
            }
            (Step::CenterCrop(to), _) => {
                let (padding, rect) = geometry::center(size, *to);
                if let Some(padding) = padding {
                    self.pad(&padding)?;
                }
                self.crop(step, rect)
            }
            (
                Step::RandomCrop {
                    size: to,
                    padding,
                    if_needed,
                },
                Drawn::Corner(x, y),
            ) => {
                geometry::padded_for(size, *to, padding.as_ref(), *if_needed)?;
                if let Some(padding) = padding {
                    self.pad(padding)?;
                }
                if let Some(padding) = if_needed.and_then(|how| geometry::needed(self.state.size(), *to, how)) {
                    self.pad(&padding)?;
                }
                self.crop(step, Rect::new(*x, *y, to.width, to.height))
            }
            (Step::Pad(padding), _) => {
                geometry::after(step, size)?;
                self.pad(padding)
            }
            (Step::HorizontalFlip(_), Drawn::Done(done)) => {
                self.state.across ^= done;
                Ok(())
            }
            (Step::VerticalFlip(_), Drawn::Done(done)) => {
                self.state.down ^= done;
                Ok(())
            }
            (Step::ColorJitter { .. }, Drawn::Jitter(None)) | (Step::RandomGrayscale(_), Drawn::Done(false)) => Ok(()),
            (Step::ColorJitter { .. }, Drawn::Jitter(Some(jitter))) => self.jitter(jitter),
            (Step::Grayscale(channels), _) => self.gray(*channels),
            (Step::RandomGrayscale(_), Drawn::Done(true)) => {
                self.materialise()?;
                self.gray(self.made.1)
            }
            (step, drawn) => Err(TransformError::Mismatch(format!(
                "{step} got parameters of another step: {drawn:?}"
            ))),
        }
    }

    fn crop(&mut self, step: &Step, rect: Rect) -> Result<(), TransformError> {
        let size = self.state.size();
        let inside =
            |at: u32, part: u32, length: u32| part > 0 && at.checked_add(part).is_some_and(|end| end <= length);
        if !inside(rect.x, rect.width, size.width) || !inside(rect.y, rect.height, size.height) {
            return Err(TransformError::Mismatch(format!(
                "{step}: {rect:?} is not inside of an image of {size}"
            )));
        }
        self.state.crop(rect);
        Ok(())
    }

    fn resize(&mut self, to: Size, filter: Filter, area: [f32; 4]) -> Result<(), TransformError> {
        let size = self.state.size();
        #[expect(clippy::float_cmp, reason = "as Pillow asks")]
        if size == to && area == geometry::whole(size) {
            return Ok(());
        }
        // What is mirrored afterwards has the same pixels only up to rounding, so it is mirrored first.
        if self.state.across || self.state.down || matches!(self.state.base, Base::Resized(_)) {
            self.materialise()?;
        }
        let Base::Whole(made) = self.state.base else {
            unreachable!("it was made")
        };
        let rect = self.state.window;
        self.state = Lazy {
            base: Base::Resized(Resized {
                made,
                rect,
                area,
                filter,
                to,
            }),
            ..Lazy::whole(made, to)
        };
        Ok(())
    }

    fn pad(&mut self, padding: &Padding) -> Result<(), TransformError> {
        self.materialise()?;
        let (size, channels) = self.made;
        let Worker { pixels, spare, .. } = &mut *self.worker;
        geometry::pad(view(pixels, size, channels), padding, spare);
        std::mem::swap(pixels, spare);
        self.made.0 = geometry::padded(size, padding);
        self.state = Lazy::whole(true, self.made.0);
        Ok(())
    }

    fn jitter(&mut self, jitter: &Jitter) -> Result<(), TransformError> {
        self.materialise()?;
        colour::jitter(&mut self.worker.pixels, self.made.1, jitter);
        Ok(())
    }

    fn gray(&mut self, channels: usize) -> Result<(), TransformError> {
        self.materialise()?;
        let pixels = &mut self.worker.pixels;
        match (self.made.1, channels) {
            (3, 1) => colour::to_gray(pixels),
            (3, _) => colour::to_gray_rgb(pixels),
            (1, 3) => colour::triple(pixels),
            _ => {}
        }
        self.made.1 = channels;
        Ok(())
    }

    /// Makes the pixels of the state, if they are not there as they are.
    fn materialise(&mut self) -> Result<(), TransformError> {
        let state = self.state;
        let size = state.size();
        if let (Base::Whole(true), false, false) = (state.base, state.across, state.down)
            && size == self.made.0
        {
            return Ok(());
        }
        let channels = self.channels(state);
        let bytes = size.width as usize * channels;
        let mut spare = std::mem::take(&mut self.worker.spare);
        spare.resize(bytes * size.height as usize, 0);
        self.emit(&mut |y, row| {
            let out = &mut spare[y * bytes..(y + 1) * bytes];
            if state.across {
                for (out, pixel) in out.chunks_exact_mut(channels).zip(row.chunks_exact(channels).rev()) {
                    out.copy_from_slice(pixel);
                }
            } else {
                out.copy_from_slice(row);
            }
            Ok(())
        })?;
        self.worker.spare = std::mem::replace(&mut self.worker.pixels, spare);
        self.made = (size, channels);
        self.state = Lazy::whole(true, size);
        Ok(())
    }

    fn finish(mut self, out: &mut [u8]) -> Result<(), TransformError> {
        let state = self.state;
        let size = state.size();
        let bytes = self.transform.bytes(size);
        if out.len() != bytes {
            return Err(TransformError::Mismatch(format!(
                "the image comes out as {size} pixels, {bytes} bytes, and the output has {} bytes",
                out.len()
            )));
        }
        let Some((of, store)) = self.worker.store.take() else {
            unreachable!("made by run")
        };
        let done = self.emit(&mut |y, row| store.row(out, size, y, row, state.across));
        self.worker.store = Some((of, store));
        done
    }

    fn channels(&self, state: Lazy) -> usize {
        match state.base {
            Base::Whole(true) | Base::Resized(Resized { made: true, .. }) => self.made.1,
            _ => self.transform.input_channels(),
        }
    }

    /// Gives the rows of the state, each with its place; upside down where it is, but never mirrored from left to right.
    fn emit(&mut self, each: &mut Sink<'_>) -> Result<(), TransformError> {
        let state = self.state;
        let window = state.window;
        let height = window.height as usize;
        let mut done = Ok(());
        let mut give = |y: usize, row: &[u8]| {
            if done.is_ok() {
                done = each(if state.down { height - 1 - y } else { y }, row);
            }
        };
        let Worker {
            decoder,
            scratch,
            decoded,
            pixels,
            ..
        } = &mut *self.worker;
        let mut sources = Sources {
            decoder,
            decoded,
            source: self.source,
            made: view(pixels, self.made.0, self.made.1),
            transform: self.transform,
        };
        match state.base {
            Base::Whole(made) => {
                let view = sources.part(made, window)?;
                (0..height).for_each(|y| give(y, view.row(y)));
            }
            Base::Resized(Resized {
                made,
                rect,
                area,
                filter,
                to,
            }) => {
                let columns = window.x as usize..(window.x + window.width) as usize;
                let rows = window.y as usize..(window.y + window.height) as usize;
                let to = (to.width as usize, to.height as usize);
                let how = (filter, sources.transform.passes);
                let shrink = sources.shrink(made, area, to);
                if shrink > 1 {
                    let (view, area) = sources.shrunk(rect, area, shrink)?;
                    let resize = Resize::new(how, (view.width, view.height), area, to, columns, rows);
                    let (columns, rows) = resize.source();
                    resize.run(view.part(columns, rows), scratch, &mut give);
                } else {
                    let from = (rect.width as usize, rect.height as usize);
                    let resize = Resize::new(how, from, area, to, columns, rows);
                    let (columns, rows) = resize.source();
                    let read = Rect::new(
                        rect.x + number(columns.start),
                        rect.y + number(rows.start),
                        number(columns.len()),
                        number(rows.len()),
                    );
                    resize.run(sources.part(made, read)?, scratch, &mut give);
                }
            }
        }
        done
    }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn view(pixels: &[u8], size: Size, channels: usize) -> View<'_> {
    View::new(pixels, size.width as usize, size.height as usize, channels)
}

/// Where pixels are taken from.
struct Sources<'a> {
    decoder: &'a mut Decoder,
    decoded: &'a mut Vec<u8>,
    source: Source<'a>,
    made: View<'a>,
    transform: &'a ImageTransform,
}

impl Sources<'_> {
    fn options(&self) -> Options {
        Options {
            channels: self.transform.channels,
            deep: self.transform.deep,
            ..Options::default()
        }
    }

    /// A rectangle of the source, or of the pixels that were made last.
    fn part(&mut self, made: bool, rect: Rect) -> Result<View<'_>, TransformError> {
        let columns = rect.x as usize..(rect.x + rect.width) as usize;
        let rows = rect.y as usize..(rect.y + rect.height) as usize;
        match self.source {
            _ if made => Ok(self.made.part(columns, rows)),
            Source::Pixels(view) => Ok(view.part(columns, rows)),
            Source::Encoded(bytes) => {
                let options = self.options();
                let part = self.decoder.region(bytes, &options, rect, 1, self.decoded)?;
                let view = View::new(self.decoded, part.width as usize, part.height as usize, part.channels);
                let (x, y) = ((rect.x - part.x) as usize, (rect.y - part.y) as usize);
                Ok(view.part(x..x + columns.len(), y..y + rows.len()))
            }
        }
    }

    /// By how much a rectangle may be shrunk as it is decoded: as long as it stays so many times as large as what becomes of it.
    #[expect(clippy::cast_precision_loss, reason = "sizes of images")]
    fn shrink(&self, made: bool, area: [f32; 4], to: (usize, usize)) -> u32 {
        let Source::Encoded(bytes) = self.source else {
            return 1;
        };
        let Some(gap) = self
            .transform
            .shrink
            .filter(|_| !made && Format::of(bytes) == Some(Format::Jpeg))
        else {
            return 1;
        };
        [8, 4, 2]
            .into_iter()
            .find(|shrink| {
                let at_least =
                    |from: f32, until: f32, length: usize| (until - from) / *shrink as f32 >= length as f32 * gap;
                at_least(area[0], area[2], to.0) && at_least(area[1], area[3], to.1)
            })
            .unwrap_or(1)
    }

    /// A rectangle of the source, shrunk, with some pixels more, and where in those an area of it lies.
    #[expect(clippy::cast_precision_loss, reason = "sizes of images")]
    fn shrunk(&mut self, rect: Rect, area: [f32; 4], shrink: u32) -> Result<(View<'_>, [f32; 4]), TransformError> {
        let Source::Encoded(bytes) = self.source else {
            unreachable!("only files are decoded")
        };
        let options = self.options();
        let part = self.decoder.region(bytes, &options, rect, shrink, self.decoded)?;
        let view = View::new(self.decoded, part.width as usize, part.height as usize, part.channels);
        let place = |at: f32, rect: u32, origin: u32, length: u32| {
            ((rect as f32 + at) / part.shrink as f32 - origin as f32).clamp(0.0, length as f32)
        };
        let across = |at: f32| place(at, rect.x, part.x, part.width);
        let down = |at: f32| place(at, rect.y, part.y, part.height);
        Ok((view, [across(area[0]), down(area[1]), across(area[2]), down(area[3])]))
    }
}
