/* libjpeg's classic interface behind calls that return: its errors leave by longjmp over frames of C alone, and nothing is printed.
 *
 * Why not TurboJPEG's interface: it fills in what a truncated file lacks, where Pillow refuses, or goes on as LOAD_TRUNCATED_IMAGES says.
 * Both follow from a source that suspends, which only the classic interface has. */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

enum { DONE = 0, SHORT = 1, BROKEN = 2, MEMORY = 3, OTHERWISE = 4 };

/* More scans than any encoder writes: each costs a pass over the whole image, whatever the size of the file. */
enum { MOST_SCANS = 500 };

struct feedrate_jpeg {
  struct jpeg_decompress_struct cinfo;
  struct jpeg_error_mgr err;
  struct jpeg_source_mgr src;
  struct jpeg_progress_mgr progress;
  jmp_buf jump;
  int created;
  int fill;
  int suspended;
  long skip;
  unsigned char *tail;
  char message[JMSG_LENGTH_MAX];
};

struct feedrate_header {
  uint32_t width, height;
  int32_t components, precision;
};

static void on_error(j_common_ptr cinfo) {
  struct feedrate_jpeg *j = cinfo->client_data;
  (*cinfo->err->format_message)(cinfo, j->message);
  switch (cinfo->err->msg_code) {
    case JERR_OUT_OF_MEMORY: longjmp(j->jump, MEMORY);
    case JERR_CANT_SUSPEND: longjmp(j->jump, SHORT); /* arithmetic coding */
    default: longjmp(j->jump, BROKEN);
  }
}

static void on_message(j_common_ptr cinfo) { (void)cinfo; }

/* Warnings are counted and passed over, as Pillow does. */
static void on_warning(j_common_ptr cinfo, int level) {
  if (level < 0) cinfo->err->num_warnings++;
}

static void on_progress(j_common_ptr cinfo) {
  if (((j_decompress_ptr)cinfo)->input_scan_number > MOST_SCANS) {
    struct feedrate_jpeg *j = cinfo->client_data;
    snprintf(j->message, sizeof j->message, "it has more than %d scans", (int)MOST_SCANS);
    longjmp(j->jump, BROKEN);
  }
}

static void nothing(j_decompress_ptr cinfo) { (void)cinfo; }

static boolean suspend(j_decompress_ptr cinfo) {
  struct feedrate_jpeg *j = cinfo->client_data;
  j->suspended = 1;
  return FALSE;
}

static void skip_input(j_decompress_ptr cinfo, long bytes) {
  struct feedrate_jpeg *j = cinfo->client_data;
  if (bytes <= 0) return;
  if ((size_t)bytes > j->src.bytes_in_buffer) {
    j->skip = bytes - (long)j->src.bytes_in_buffer;
    j->src.next_input_byte += j->src.bytes_in_buffer;
    j->src.bytes_in_buffer = 0;
  } else {
    j->src.next_input_byte += bytes;
    j->src.bytes_in_buffer -= bytes;
  }
}

/* The data are over. With `fill`, an end marker is put behind them, once; says whether to go on. */
static int refill(struct feedrate_jpeg *j) {
  size_t left = j->src.bytes_in_buffer, from = 0;
  if (!j->fill || j->tail) return 0;
  j->tail = malloc(left + 2);
  if (!j->tail) return 0;
  memcpy(j->tail, j->src.next_input_byte, left);
  j->tail[left] = 0xff;
  j->tail[left + 1] = 0xd9;
  if (j->skip > 0) from = j->skip < 2 ? (size_t)j->skip : 2;
  j->skip = 0;
  j->src.next_input_byte = j->tail + from;
  j->src.bytes_in_buffer = left + 2 - from;
  return 1;
}

struct feedrate_jpeg *feedrate_jpeg_new(void) { return calloc(1, sizeof(struct feedrate_jpeg)); }

/* Gives back what belongs to one image. Nothing is kept for the next one: tables of a file must not serve another. */
void feedrate_jpeg_end(struct feedrate_jpeg *j) {
  if (j->created) {
    jpeg_destroy_decompress(&j->cinfo);
    j->created = 0;
  }
  free(j->tail);
  j->tail = NULL;
}

void feedrate_jpeg_free(struct feedrate_jpeg *j) {
  if (j) feedrate_jpeg_end(j);
  free(j);
}

const char *feedrate_jpeg_message(const struct feedrate_jpeg *j) { return j->message; }

/* Reads the header. The data must stay where they are until feedrate_jpeg_end. */
int feedrate_jpeg_header(struct feedrate_jpeg *j, const unsigned char *data, size_t len, int fill, struct feedrate_header *out) {
  int code;
  feedrate_jpeg_end(j);
  j->message[0] = 0;
  j->fill = fill;
  j->suspended = 0;
  j->skip = 0;
  j->cinfo.err = jpeg_std_error(&j->err);
  j->err.error_exit = on_error;
  j->err.output_message = on_message;
  j->err.emit_message = on_warning;
  j->cinfo.client_data = j;
  code = setjmp(j->jump);
  if (code) return code;
  jpeg_create_decompress(&j->cinfo); /* keeps err and client_data */
  j->created = 1;
  j->progress.progress_monitor = on_progress;
  j->cinfo.progress = &j->progress;
  j->src.init_source = nothing;
  j->src.fill_input_buffer = suspend;
  j->src.skip_input_data = skip_input;
  j->src.resync_to_restart = jpeg_resync_to_restart;
  j->src.term_source = nothing;
  j->src.next_input_byte = data;
  j->src.bytes_in_buffer = len;
  j->cinfo.src = &j->src;
  do {
    code = jpeg_read_header(&j->cinfo, FALSE);
  } while (code == JPEG_HEADER_TABLES_ONLY);
  if (code == JPEG_SUSPENDED) return SHORT;
  out->width = j->cinfo.image_width;
  out->height = j->cinfo.image_height;
  out->components = j->cinfo.num_components;
  out->precision = j->cinfo.data_precision;
  return DONE;
}

/* Where the data of the first scan begin: how many bytes are left. */
size_t feedrate_jpeg_left(const struct feedrate_jpeg *j) { return j->src.bytes_in_buffer; }

/* Begins to decode at 1/shrink; `space` is what the samples are: 0 as libjpeg finds, 1 gray, 2 RGB,
 * 3 YCbCr, 4 CMYK; `colour` is what a row holds: 3 RGB, 4 RGBA, else as stored (gray 1, RGB 3, CMYK 4). */
int feedrate_jpeg_begin(struct feedrate_jpeg *j, int shrink, int space, int colour, uint32_t *width, uint32_t *height,
                        int32_t *bytes) {
  int code = setjmp(j->jump);
  if (code) return code;
  if (space == 1) j->cinfo.jpeg_color_space = JCS_GRAYSCALE;
  else if (space == 2) j->cinfo.jpeg_color_space = JCS_RGB;
  else if (space == 3) j->cinfo.jpeg_color_space = JCS_YCbCr;
  else if (space == 4) j->cinfo.jpeg_color_space = JCS_CMYK;
  j->cinfo.scale_num = 1;
  j->cinfo.scale_denom = (unsigned)shrink;
  if (j->cinfo.num_components == 4) j->cinfo.out_color_space = JCS_CMYK;
  else if (colour == 4) j->cinfo.out_color_space = JCS_EXT_RGBA;
  else if (colour == 3) j->cinfo.out_color_space = JCS_RGB;
  else j->cinfo.out_color_space = j->cinfo.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  /* A suspended start is called again where it stopped. */
  while (!jpeg_start_decompress(&j->cinfo)) {
    if (!refill(j)) return SHORT;
  }
  *width = j->cinfo.output_width;
  *height = j->cinfo.output_height;
  *bytes = j->cinfo.output_components;
  return DONE;
}

/* Decodes rows of `stride` bytes from the present one on, up to row `until`; `done` says how many rows of the image are decoded. */
int feedrate_jpeg_rows(struct feedrate_jpeg *j, unsigned char *into, size_t stride, uint32_t until, uint32_t *done) {
  JSAMPROW rows[16];
  uint32_t first = j->cinfo.output_scanline;
  int code = setjmp(j->jump);
  if (code) {
    *done = j->cinfo.output_scanline;
    return code;
  }
  while (j->cinfo.output_scanline < until) {
    uint32_t at = j->cinfo.output_scanline, n = until - at, i;
    if (n > 16) n = 16;
    for (i = 0; i < n; i++) rows[i] = into + (size_t)(at - first + i) * stride;
    if (jpeg_read_scanlines(&j->cinfo, rows, n) == 0 && !refill(j)) {
      *done = j->cinfo.output_scanline;
      return SHORT;
    }
  }
  *done = j->cinfo.output_scanline;
  return DONE;
}

/* Takes columns x to x + width, which begin at a smaller *x, and goes to row y. OTHERWISE: only decoding the whole gives the same pixels. */
int feedrate_jpeg_crop(struct feedrate_jpeg *j, uint32_t *x, uint32_t *width, uint32_t y) {
  JDIMENSION left = *x, wide = *width;
  int code = setjmp(j->jump);
  if (code) return OTHERWISE;
  if (j->cinfo.progressive_mode && j->cinfo.coef_bits) {
    /* Coefficients that never came are estimated from the blocks around. */
    int c, k;
    for (c = 0; c < j->cinfo.num_components; c++)
      for (k = 0; k < 64; k++)
        if (j->cinfo.coef_bits[c][k] != 0) return OTHERWISE;
  }
  jpeg_crop_scanline(&j->cinfo, &left, &wide);
  *x = left;
  *width = wide;
  if (y > 0 && jpeg_skip_scanlines(&j->cinfo, y) != y) return OTHERWISE;
  /* Skipping takes no notice of the end of the data. */
  return j->suspended ? OTHERWISE : DONE;
}
