//! The bot's last screenshot. The bot names a file, and the agent reads it at once, because the bot may overwrite or
//! delete it next. The agent keeps only the newest image that is not sent yet, and sends it apart from the other
//! callbacks: images are large, and no callback waits for one.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::{ImageKind, SCREENSHOT_BYTES_MAX};
use nix::libc::{O_NOCTTY, O_NONBLOCK};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::bot_run::News;
use crate::callbacks::CallbackClient;
use crate::http::{Backoff, Refusal};
use crate::log::log;
use crate::tail::Tail;

/// How long reading a file may hold up the bot's next lines. A file on a network disk may never be read.
const READING: Duration = Duration::from_secs(5);
/// The shortest time between two screenshots. The server keeps only the last one.
const PAUSE: Duration = Duration::from_secs(1);
/// How much of a path a warning shows.
const SHOWN_CHARS_MAX: usize = 200;

/// An image, with the kind that its first bytes show.
pub struct Screenshot {
    pub kind: ImageKind,
    pub image: Vec<u8>,
}

impl std::fmt::Debug for Screenshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Screenshot({}, {} bytes)", self.kind, self.image.len())
    }
}

/// Why a file is not a screenshot.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("it cannot be read: {0}")]
    Unread(#[from] std::io::Error),
    #[error("it is not a regular file")]
    NotAFile,
    #[error("it is larger than {} KiB", SCREENSHOT_BYTES_MAX / 1024)]
    TooLarge,
    #[error("it is neither a PNG nor a JPEG image")]
    NotAnImage,
    #[error("it could not be read within {} s", READING.as_secs())]
    TooSlow,
    #[error("an earlier screenshot is still being read")]
    Busy,
}

/// The newest screenshot of one bot.
#[derive(Debug, Default)]
pub struct Screenshots {
    /// The folder that relative paths start from; without it, the agent's own, which the bot inherits.
    folder: Option<PathBuf>,
    /// Stays here until the server has it, or a newer one replaces it.
    unsent: Mutex<Option<Arc<Screenshot>>>,
    came: Notify,
    /// A file that took too long. No other file is read before it, so that there is never more than one such thread.
    stuck: Mutex<Option<JoinHandle<Result<Screenshot, Unusable>>>>,
}

impl Screenshots {
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, ..Self::default() }
    }

    /// Reads the file that the bot has named. An error is a warning about it.
    pub async fn take(&self, path: &str) -> Result<(), String> {
        let taken = self.read(path).await.map_err(|why| {
            let shown: String = path.chars().take(SHOWN_CHARS_MAX).collect();
            format!("screenshot {shown:?} not sent: {why}")
        })?;
        *lock(&self.unsent) = Some(Arc::new(taken));
        self.came.notify_one();
        Ok(())
    }

    async fn read(&self, path: &str) -> Result<Screenshot, Unusable> {
        if lock(&self.stuck).as_ref().is_some_and(|reading| !reading.is_finished()) {
            return Err(Unusable::Busy);
        }
        let path = self.folder.as_deref().unwrap_or(Path::new("")).join(path);
        let mut reading = tokio::task::spawn_blocking(move || read(&path));
        match tokio::time::timeout(READING, &mut reading).await {
            Ok(read) => read.unwrap_or_else(|panic| Err(std::io::Error::other(panic).into())),
            Err(_) => {
                *lock(&self.stuck) = Some(reading);
                Err(Unusable::TooSlow)
            }
        }
    }

    fn unsent(&self) -> Option<Arc<Screenshot>> {
        lock(&self.unsent).clone()
    }

    /// The server has decided about this screenshot. A newer one stays.
    fn settle(&self, decided: &Arc<Screenshot>) {
        let mut unsent = lock(&self.unsent);
        if unsent.as_ref().is_some_and(|unsent| Arc::ptr_eq(unsent, decided)) {
            *unsent = None;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a screenshot. The bot chose the path, so this must neither wait for a pipe nor read without end.
fn read(path: &Path) -> Result<Screenshot, Unusable> {
    // Before opening, because opening a device can have effects; and after it, because the path may have changed.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Unusable::NotAFile);
    }
    let file: File = OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unusable::NotAFile);
    }
    let most = SCREENSHOT_BYTES_MAX as u64;
    if metadata.len() > most {
        return Err(Unusable::TooLarge);
    }
    let mut image = Vec::new();
    file.take(most + 1).read_to_end(&mut image)?;
    if image.len() > SCREENSHOT_BYTES_MAX {
        return Err(Unusable::TooLarge);
    }
    let kind = ImageKind::of(&image).ok_or(Unusable::NotAnImage)?;
    Ok(Screenshot { kind, image })
}

/// Sends the screenshots of one bot to the server.
#[derive(Clone, Debug)]
pub struct ScreenshotSender {
    callbacks: CallbackClient,
    screenshots: Arc<Screenshots>,
    tail: Arc<Tail>,
    news: mpsc::UnboundedSender<News>,
    ended: Arc<Notify>,
}

impl ScreenshotSender {
    pub fn new(
        callbacks: CallbackClient,
        screenshots: Arc<Screenshots>,
        tail: Arc<Tail>,
        news: mpsc::UnboundedSender<News>,
    ) -> Self {
        Self { callbacks, screenshots, tail, news, ended: Arc::default() }
    }

    /// Sends the newest screenshot whenever there is one, until the end. While the server is away, a newer one replaces
    /// it.
    pub async fn run(self) {
        let mut backoff = Backoff::default();
        let mut is_ending = false;
        loop {
            let pause = match self.screenshots.unsent() {
                None if is_ending => return,
                None => None,
                Some(screenshot) => match self.send(&screenshot).await {
                    Sent::Decided => {
                        backoff.succeeded("screenshot");
                        Some(if is_ending { Duration::ZERO } else { PAUSE })
                    }
                    Sent::Away(refusal) => Some(backoff.after("screenshot", &refusal)),
                    Sent::Over => return,
                },
            };
            tokio::select! {
                () = self.ended.notified() => {
                    (backoff, is_ending) = (Backoff::default(), true);
                }
                () = self.screenshots.came.notified(), if pause.is_none() => {}
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// The bot has ended: the last screenshot is sent without a pause, and then no more.
    pub fn end(&self) {
        self.ended.notify_one();
    }

    async fn send(&self, screenshot: &Arc<Screenshot>) -> Sent {
        let refusal = match self.callbacks.send_screenshot(screenshot).await {
            Err(refusal @ Refusal::Away { .. }) => return Sent::Away(refusal),
            answer => {
                self.screenshots.settle(screenshot);
                match answer {
                    Ok(()) => return Sent::Decided,
                    Err(refusal) => refusal,
                }
            }
        };
        if refusal.ends_assignment() {
            let _ = self.news.send(News::Over(format!("screenshot: {refusal}")));
            return Sent::Over;
        }
        let why = format!("screenshot not stored: {refusal}");
        if self.tail.warn(&why) {
            log!("{why}");
        }
        Sent::Decided
    }
}

enum Sent {
    /// The server has it, or does not want it.
    Decided,
    Away(Refusal),
    /// The server does not accept this assignment any more.
    Over,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    fn why(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn only_a_regular_file_of_bounded_size_with_an_image_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let largest = [PNG, &vec![0; SCREENSHOT_BYTES_MAX - PNG.len()]].concat();
        std::fs::write(at("largest"), &largest).unwrap();
        let screenshot = read(&at("largest")).unwrap();
        assert_eq!((screenshot.kind, screenshot.image.len()), (ImageKind::Png, SCREENSHOT_BYTES_MAX));
        std::fs::write(at("larger"), [&largest[..], b"\0"].concat()).unwrap();
        assert_eq!(why(&at("larger")), "it is larger than 512 KiB");
        std::fs::write(at("text"), "GIF89a").unwrap();
        std::os::unix::fs::symlink(at("text"), at("link")).unwrap();
        assert_eq!(why(&at("link")), "it is neither a PNG nor a JPEG image");
        assert!(why(&at("missing")).starts_with("it cannot be read: No such file"), "{}", why(&at("missing")));
        for path in [folder.path(), Path::new("/dev/zero")] {
            assert_eq!(why(path), "it is not a regular file");
        }
        // It has the size 0, and is longer.
        assert_eq!(why(Path::new("/proc/self/status")), "it is neither a PNG nor a JPEG image");
    }

    #[tokio::test]
    async fn the_newest_screenshot_replaces_one_that_is_not_sent_and_outlasts_the_answer_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let screenshots = Screenshots::new(Some(folder.path().to_owned()));
        std::fs::write(folder.path().join("a.png"), PNG).unwrap();
        screenshots.take("a.png").await.unwrap();
        let first = screenshots.unsent().unwrap();
        std::fs::write(folder.path().join("b.jpg"), b"\xff\xd8\xff\xe0").unwrap();
        screenshots.take("b.jpg").await.unwrap();
        std::fs::remove_file(folder.path().join("b.jpg")).unwrap();
        screenshots.settle(&first);
        let second = screenshots.unsent().unwrap();
        assert_eq!(second.kind, ImageKind::Jpeg);
        screenshots.settle(&second);
        assert!(screenshots.unsent().is_none());
        assert!(screenshots.take("b.jpg").await.unwrap_err().starts_with("screenshot \"b.jpg\" not sent: it cannot"));
    }
}
