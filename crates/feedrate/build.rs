//! Builds the C of feature `image`: calls into libjpeg-turbo that return instead of unwinding.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "image")]
    jpeg();
}

#[cfg(feature = "image")]
fn jpeg() {
    const SHIM: &str = "src/decode/jpeg/shim.c";
    println!("cargo:rerun-if-changed={SHIM}");
    let mut build = cc::Build::new();
    // turbojpeg-sys says where the headers of the libjpeg-turbo that it has built are.
    if let Ok(paths) = std::env::var("DEP_TURBOJPEG_INCLUDE") {
        build.includes(paths.split(','));
    }
    build
        .file(SHIM)
        .warnings(true)
        .extra_warnings(true)
        .opt_level(2)
        .compile("feedrate_jpeg");
}
