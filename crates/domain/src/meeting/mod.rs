//! Reads pasted meeting links into a platform and the platform's own id. This file has the rules that all platforms
//! share: remove text that chat programs add, refuse links that could lead a bot to another host, and find the
//! platform. Each platform has a module for its link forms.

mod google_meet;
mod other_services;
mod teams;
#[cfg(test)]
mod tests;
mod zoom;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::Url;

/// The link forms that [`Meeting::from_link`] reads, as text for people.
pub const UNDERSTOOD_FORMS: &str = "Google Meet (https://meet.google.com/abc-defg-hij), \
    Microsoft Teams (https://teams.microsoft.com/l/meetup-join/… or \
    https://teams.microsoft.com/meet/1234567890123?p=…, also on teams.live.com) and \
    Zoom (https://zoom.us/j/81234567890, also /w/, /s/, /wc/ and /my/name, on any Zoom subdomain)";

/// Longer than any platform's links, and short enough for every database and browser.
const MAX_LINK_CHARS: usize = 2048;

/// Pairs that chat programs and documents put around a link.
const WRAPPERS: [(char, char); 7] =
    [('<', '>'), ('"', '"'), ('\'', '\''), ('`', '`'), ('“', '”'), ('‘', '’'), ('«', '»')];

/// A meeting platform that bots can join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    /// Google Meet.
    GoogleMeet,
    /// Microsoft Teams.
    Teams,
    /// Zoom.
    Zoom,
}

impl Platform {
    /// Every platform.
    pub const ALL: [Self; 3] = [Self::GoogleMeet, Self::Teams, Self::Zoom];

    /// The name used in the API and the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GoogleMeet => "google_meet",
            Self::Teams => "teams",
            Self::Zoom => "zoom",
        }
    }

    /// The name for people.
    const fn label(self) -> &'static str {
        match self {
            Self::GoogleMeet => "Google Meet",
            Self::Teams => "Microsoft Teams",
            Self::Zoom => "Zoom",
        }
    }

    const fn link_forms(self) -> &'static str {
        match self {
            Self::GoogleMeet => google_meet::LINK_FORMS,
            Self::Teams => teams::LINK_FORMS,
            Self::Zoom => zoom::LINK_FORMS,
        }
    }

    const fn id_form(self) -> &'static str {
        match self {
            Self::GoogleMeet => google_meet::ID_FORM,
            Self::Teams => teams::ID_FORM,
            Self::Zoom => zoom::ID_FORM,
        }
    }

    fn of_host(host: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|platform| match platform {
            Self::GoogleMeet => google_meet::owns(host),
            Self::Teams => teams::owns(host),
            Self::Zoom => zoom::owns(host),
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A platform name that is none of [`Platform::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPlatform {
    /// The name is unknown.
    #[error("unknown platform; the platforms are google_meet, teams, zoom")]
    Unknown,
    /// A meeting service that bots cannot join.
    #[error("{0} is not supported yet; the platforms are google_meet, teams, zoom")]
    NotSupported(&'static str),
}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || match other_services::named(name) {
            Some(service) => UnknownPlatform::NotSupported(service),
            None => UnknownPlatform::Unknown,
        };
        Self::ALL.into_iter().find(|platform| platform.as_str() == name).ok_or_else(unknown)
    }
}

/// Why a link or a native id was refused. Messages never repeat the input: it may hold a passcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MeetingError {
    /// The text is not a known form of meeting link.
    #[error("this is not a known meeting link; the known links are {UNDERSTOOD_FORMS}")]
    NotUnderstood,
    /// The link belongs to this platform, but does not lead to a meeting.
    #[error(
        "this {} link does not lead to a meeting; a meeting link looks like {}",
        .0.label(),
        .0.link_forms()
    )]
    NotAMeeting(Platform),
    /// A meeting service that bots cannot join.
    #[error("{0} is not supported yet; the known links are {UNDERSTOOD_FORMS}")]
    NotSupported(&'static str),
    /// A personal Zoom link with a name that Zoom does not allow.
    #[error("the name in this personal Zoom link is not valid: it must have {}", zoom::NAME_FORM)]
    NotAPersonalName,
    /// The text is not a native id of this platform.
    #[error("this is not a {} meeting id; it must be {}", .0.label(), .0.id_form())]
    InvalidNativeId(Platform),
}

/// A meeting on a platform, with the address a bot should open to join it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// The platform.
    pub platform: Platform,
    /// The platform's own id in one canonical spelling, so that equal meetings compare equal.
    pub native_id: String,
    /// The address that a bot opens.
    pub url: String,
}

impl Meeting {
    /// Reads a pasted link. Keeps the path and query, because they contain passcodes and context.
    pub fn from_link(pasted: &str) -> Result<Self, MeetingError> {
        let text = without_wrapping(pasted);
        if text.chars().count() > MAX_LINK_CHARS || text.contains(|c: char| c.is_control() || c.is_whitespace()) {
            return Err(MeetingError::NotUnderstood);
        }
        let link = Link::parse(text).ok_or(MeetingError::NotUnderstood)?;
        let host = link.url.host_str().unwrap_or_default();
        let unknown = || match other_services::of_host(host).filter(|_| link.app.is_none()) {
            Some(service) => MeetingError::NotSupported(service),
            None => MeetingError::NotUnderstood,
        };
        let platform = Platform::of_host(host)
            .filter(|platform| link.app.is_none_or(|app| app == *platform))
            .ok_or_else(unknown)?;
        if platform == Platform::Zoom && link.app.is_none() && zoom::is_bad_personal_link(&link.url) {
            return Err(MeetingError::NotAPersonalName);
        }
        let read = match (platform, link.app) {
            (Platform::GoogleMeet, _) => google_meet::read(link.url),
            (Platform::Teams, _) => teams::read(link.url),
            (Platform::Zoom, None) => zoom::read(link.url),
            (Platform::Zoom, Some(_)) => zoom::read_app_link(&link.url),
        };
        let (native_id, mut url) = read.ok_or(MeetingError::NotAMeeting(platform))?;
        url.set_fragment(None);
        let url = String::from(url);
        // Escaping can make an address longer than the pasted text. The result must be within the limit too.
        if url.len() > MAX_LINK_CHARS {
            return Err(MeetingError::NotUnderstood);
        }
        Ok(Self { platform, native_id, url })
    }

    /// Checks an id of the platform and gives the meeting its canonical address.
    pub fn from_native_id(platform: Platform, id: &str) -> Result<Self, MeetingError> {
        let id = id.trim();
        let canonical = match platform {
            Platform::GoogleMeet => google_meet::canonical(id),
            Platform::Teams => teams::canonical(id),
            Platform::Zoom => zoom::canonical(id),
        };
        let (native_id, url) = canonical.ok_or(MeetingError::InvalidNativeId(platform))?;
        Ok(Self { platform, native_id, url })
    }
}

/// A pasted link as an https address.
struct Link {
    url: Url,
    /// The platform whose own URL scheme the link has. That platform's program opens only its own links.
    app: Option<Platform>,
}

impl Link {
    fn parse(text: &str) -> Option<Self> {
        let (app, rest) = match split_scheme(text) {
            None => (None, text),
            Some((scheme, rest)) => {
                let app = match scheme.to_ascii_lowercase().as_str() {
                    "http" | "https" => None,
                    "msteams" => Some(Platform::Teams),
                    "zoommtg" => Some(Platform::Zoom),
                    _ => return None,
                };
                match (app, rest.strip_prefix("//")) {
                    (_, Some(rest)) => (app, rest),
                    // The Teams program also accepts a bare path, which means its main host.
                    (Some(Platform::Teams), None) => {
                        let url = https(&format!("{}{rest}", teams::MAIN_HOST))?;
                        return Some(Self { url, app });
                    }
                    _ => return None,
                }
            }
        };
        let url = https(rest)?;
        Some(Self { url, app })
    }
}

/// Splits at a scheme's colon only if a slash follows, so that `host:port` is not read as a scheme.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    (is_scheme && rest.starts_with('/')).then_some((scheme, rest))
}

/// Parses the text after `https://`. Checks the authority as text, because the parser silently drops the parts that
/// this function refuses: extra slashes, an empty user name, the default port.
fn https(rest: &str) -> Option<Url> {
    let authority = rest.split(['/', '\\', '?', '#']).next()?;
    if authority.is_empty() || authority.contains(['@', ':']) {
        return None;
    }
    Url::parse(&format!("https://{rest}")).ok()
}

/// Removes the white space and the pairs of brackets or quotes around a link.
fn without_wrapping(pasted: &str) -> &str {
    // Web chats leave invisible marks at the ends of copied text, which would become part of a passcode.
    let trim = |text| {
        str::trim_matches(text, |c: char| c.is_whitespace() || matches!(c, '\u{200b}' | '\u{2060}' | '\u{feff}'))
    };
    let mut text = trim(pasted);
    while let Some(inner) = WRAPPERS.iter().find_map(|(open, close)| text.strip_prefix(*open)?.strip_suffix(*close)) {
        text = trim(inner);
    }
    text
}

/// The segments of the path. A trailing slash makes no difference.
fn segments(url: &Url) -> Vec<&str> {
    let path = url.path();
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path).split('/').collect()
}

/// The value of a query parameter as written, so that its escaping stays unchanged.
fn raw_parameter<'a>(url: &'a Url, name: &str) -> Option<&'a str> {
    url.query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// Whether the text has only digits, with a length in this range. `str::parse` would also accept a sign.
fn is_digits(text: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}
