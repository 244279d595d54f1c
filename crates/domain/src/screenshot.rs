//! The last screenshot of a bot: how large it may be, and which kinds of image it may be.

use crate::text_enum::text_enum;

/// The largest screenshot, in bytes.
pub const SCREENSHOT_BYTES_MAX: usize = 512 * 1024;

/// The kind of a screenshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// A PNG image.
    Png,
    /// A JPEG image.
    Jpeg,
}

/// A text that is not the media type of a screenshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the media type of a screenshot; known are image/png, image/jpeg")]
pub struct UnknownImageKind(pub String);

text_enum!(ImageKind, UnknownImageKind {
    Png = "image/png",
    Jpeg = "image/jpeg",
});

impl ImageKind {
    /// The kind of these bytes, by how they begin. `None` if they are another kind of file.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| bytes.starts_with(kind.signature()))
    }

    /// The bytes with which every image of this kind begins.
    const fn signature(self) -> &'static [u8] {
        match self {
            Self::Png => b"\x89PNG\r\n\x1a\n",
            Self::Jpeg => b"\xff\xd8\xff",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_image_is_known_by_its_first_bytes() {
        assert_eq!(ImageKind::of(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), Some(ImageKind::Png));
        assert_eq!(ImageKind::of(b"\xff\xd8\xff\xe0\0\x10JFIF"), Some(ImageKind::Jpeg));
        for other in [&b""[..], b"\x89PNG", b"\xff\xd8", b"GIF89a", b"<svg xmlns=", b"RIFF\0\0\0\0WEBP"] {
            assert_eq!(ImageKind::of(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_kind_is_named_by_its_media_type() {
        assert_eq!("image/jpeg".parse(), Ok(ImageKind::Jpeg));
        assert!("image/gif".parse::<ImageKind>().unwrap_err().to_string().contains("known are image/png"));
    }
}
