//! Microsoft Teams. A meeting is a chat thread, with a message id if it was started in a channel; newer links have a
//! number and a passcode. The web client and its launcher page wrap the same link in a fragment or a parameter. This
//! module unwraps it, because a fragment would not reach a bot.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use super::{is_digits, raw_parameter, segments};

pub(super) const LINK_FORMS: &str = "https://teams.microsoft.com/l/meetup-join/… or \
    https://teams.microsoft.com/meet/1234567890123?p=…, also on teams.live.com";
pub(super) const ID_FORM: &str = "7 to 20 digits, or a thread such as \
    19:meeting_abc@thread.v2, followed by a slash and the message for a meeting in a channel";

/// The host for work and school accounts, unless the link names another.
pub(super) const MAIN_HOST: &str = "teams.microsoft.com";

const PERSONAL_HOST: &str = "teams.live.com";
const HOSTS: [&str; 5] =
    [MAIN_HOST, PERSONAL_HOST, "teams.cloud.microsoft", "gov.teams.microsoft.us", "dod.teams.microsoft.us"];

/// Real ids are far shorter. With these limits an address stays within its limit even if every character is escaped.
const MAX_THREAD_CHARS: usize = 256;
const MAX_MESSAGE_CHARS: usize = 64;

/// The message id that means the thread itself.
const NO_MESSAGE: &str = "0";

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(super) fn owns(host: &str) -> bool {
    HOSTS.contains(&host)
}

pub(super) fn read(url: Url) -> Option<(String, Url)> {
    let url = out_of_client(out_of_launcher(url)?)?;
    let native_id = match segments(&url)[..] {
        ["meet", number] => meeting_number(number)?.to_owned(),
        ["l", "meetup-join", thread] => thread_id(&decode(thread)?, NO_MESSAGE)?,
        ["l", "meetup-join", thread, message] => thread_id(&decode(thread)?, &decode(message)?)?,
        _ => return None,
    };
    Some((native_id, url))
}

pub(super) fn canonical(id: &str) -> Option<(String, String)> {
    // Invitations print the number in groups.
    let bare: String = id.chars().filter(|c| !c.is_whitespace()).collect();
    if let Some(number) = meeting_number(&bare) {
        let url = format!("https://{PERSONAL_HOST}/meet/{number}");
        return Some((number.to_owned(), url));
    }
    let (thread, message) = id.split_once('/').unwrap_or((id, NO_MESSAGE));
    let native_id = thread_id(thread, message)?;
    let escaped = utf8_percent_encode(thread, ESCAPED);
    let url = format!("https://{MAIN_HOST}/l/meetup-join/{escaped}/{message}");
    Some((native_id, url))
}

/// The launcher page ("open in the app or continue here") has the client's address in `url`.
fn out_of_launcher(url: Url) -> Option<Url> {
    if url.path() != "/dl/launcher/launcher.html" {
        return Some(url);
    }
    let inner = decode(raw_parameter(&url, "url")?)?;
    on_same_host(&url, &inner)
}

/// The web client has the current link in its fragment.
fn out_of_client(url: Url) -> Option<Url> {
    match (&segments(&url)[..], url.fragment()) {
        (["_"] | ["v2"], Some(inner)) => on_same_host(&url, inner),
        _ => Some(url),
    }
}

/// Takes only the path, because an embedded address could name any host.
fn on_same_host(outer: &Url, inner: &str) -> Option<Url> {
    if !inner.starts_with('/') || inner.contains(|c: char| c.is_control()) {
        return None;
    }
    Url::parse(&format!("https://{}{inner}", outer.host_str()?)).ok()
}

fn meeting_number(text: &str) -> Option<&str> {
    is_digits(text, 7..=20).then_some(text)
}

fn thread_id(thread: &str, message: &str) -> Option<String> {
    if !is_thread(thread) || !is_message(message) {
        return None;
    }
    Some(match message {
        NO_MESSAGE => thread.to_owned(),
        message => format!("{thread}/{message}"),
    })
}

fn is_thread(text: &str) -> bool {
    // A percent sign indicates double escaping, and the other characters have a meaning in addresses.
    let plain = text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b'\\' | b'%' | b'?' | b'#'));
    let Some((name, realm)) = text.strip_prefix("19:").and_then(|rest| rest.split_once('@')) else {
        return false;
    };
    let known_realm = realm == "unq.gbl.spaces"
        || realm
            .strip_prefix("thread.")
            .is_some_and(|kind| !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric()));
    plain && !name.is_empty() && known_realm && text.len() <= MAX_THREAD_CHARS
}

fn is_message(text: &str) -> bool {
    (1..=MAX_MESSAGE_CHARS).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

fn decode(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use crate::meeting::{Meeting, MeetingError, Platform};

    fn meeting(native_id: &str, url: &str) -> Meeting {
        Meeting { platform: Platform::Teams, native_id: native_id.to_owned(), url: url.to_owned() }
    }

    #[test]
    fn a_meetup_link_gives_its_decoded_thread_and_keeps_its_context() {
        for (pasted, id) in [
            (
                "https://teams.microsoft.com/l/meetup-join/19%3ameeting_AbC%40thread.v2/0?context=%7b%22Tid%22%3a%221%22%7d",
                "19:meeting_AbC@thread.v2",
            ),
            (
                "https://teams.microsoft.com/l/meetup-join/19:meeting_AbC@thread.v2/0?context=%7b%7d",
                "19:meeting_AbC@thread.v2",
            ),
            ("https://teams.microsoft.com/l/meetup-join/19:meeting_AbC@thread.v2", "19:meeting_AbC@thread.v2"),
            ("https://teams.live.com/l/meetup-join/19:meeting_AbC@thread.v2/0/", "19:meeting_AbC@thread.v2"),
            (
                "https://gov.teams.microsoft.us/l/meetup-join/19%3aa-b_c%40thread.tacv2/1589823562000?context=x",
                "19:a-b_c@thread.tacv2/1589823562000",
            ),
            ("https://dod.teams.microsoft.us/l/meetup-join/19%3aa%40thread.skype/0", "19:a@thread.skype"),
            ("https://teams.cloud.microsoft/l/meetup-join/19%3aa_b%40unq.gbl.spaces/0", "19:a_b@unq.gbl.spaces"),
        ] {
            assert_eq!(Meeting::from_link(pasted), Ok(meeting(id, pasted)));
        }
    }

    #[test]
    fn a_numbered_link_gives_its_digits_and_keeps_its_passcode() {
        for url in [
            "https://teams.microsoft.com/meet/2345678901234?p=AbC",
            "https://teams.live.com/meet/2345678901234?p=AbC",
            "https://teams.cloud.microsoft/meet/2345678901234/?p=AbC",
        ] {
            assert_eq!(Meeting::from_link(url), Ok(meeting("2345678901234", url)));
        }
    }

    #[test]
    fn a_link_inside_the_web_client_its_launcher_or_the_program_is_taken_out() {
        let direct =
            "https://teams.microsoft.com/l/meetup-join/19:meeting_A@thread.v2/0?context=%7B%22Tid%22:%221%22%7D";
        for pasted in [
            "https://teams.microsoft.com/_#/l/meetup-join/19:meeting_A@thread.v2/0?context=%7B%22Tid%22:%221%22%7D",
            "https://teams.microsoft.com/_?lm=deeplink#/l/meetup-join/19:meeting_A@thread.v2/0?context=%7B%22Tid%22:%221%22%7D",
            "https://teams.microsoft.com/v2/?meetingjoin=true#/l/meetup-join/19:meeting_A@thread.v2/0?context=%7B%22Tid%22:%221%22%7D",
            "https://teams.microsoft.com/dl/launcher/launcher.html?url=%2F_%23%2Fl%2Fmeetup-join%2F19%3Ameeting_A%40thread.v2%2F0%3Fcontext%3D%257B%2522Tid%2522%3A%25221%2522%257D&type=meetup-join&directDl=true",
            "https://teams.microsoft.com/dl/launcher/launcher.html?type=meetup-join&url=%2fl%2fmeetup-join%2f19%3Ameeting_A%40thread.v2%2F0%3Fcontext%3D%257B%2522Tid%2522%3A%25221%2522%257D",
            "msteams:/l/meetup-join/19:meeting_A@thread.v2/0?context=%7B%22Tid%22:%221%22%7D",
            "MSTeams://teams.microsoft.com/l/meetup-join/19:meeting_A@thread.v2/0?context=%7B%22Tid%22:%221%22%7D",
        ] {
            assert_eq!(Meeting::from_link(pasted), Ok(meeting("19:meeting_A@thread.v2", direct)), "{pasted}");
        }
        assert_eq!(
            Meeting::from_link(
                "teams.live.com/dl/launcher/launcher.html?url=%2F_%23%2Fmeet%2F9345678901234%3Fp%3Dx%26anon%3Dtrue&type=meet"
            ),
            Ok(meeting("9345678901234", "https://teams.live.com/meet/9345678901234?p=x&anon=true"))
        );
    }

    #[test]
    fn other_pages_of_teams_are_not_meetings() {
        for path in [
            "",
            "/",
            "/_",
            "/_#",
            "/_#//evil.com/l/meetup-join/19:a@thread.v2/0",
            "/_#l/meetup-join/19:a@thread.v2/0",
            "/x#/l/meetup-join/19:a@thread.v2/0",
            "/l/channel/19%3aa%40thread.tacv2/General",
            "/l/meetup-join",
            "/l/meetup-join/",
            "/l/meetup-join//0",
            "/l/meetup-join/19:a@thread.v2/0/extra",
            "/l/meetup-join/19:a@thread.v2//",
            "/l/meetup-join/19:a@thread.v2/a%2Fb",
            "/l/meetup-join/19:@thread.v2/0",
            "/l/meetup-join/19:a@thread./0",
            "/l/meetup-join/19:a@evil.v2/0",
            "/l/meetup-join/20:a@thread.v2/0",
            "/l/meetup-join/19%3aa%2Fb%40thread.v2/0",
            "/l/meetup-join/19%3aa%20b%40thread.v2/0",
            "/l/meetup-join/19%3aa%00%40thread.v2/0",
            "/l/meetup-join/19%3aa%ff%40thread.v2/0",
            "/l/meetup-join/19%253aa%2540thread.v2/0",
            "/meet/123456",
            "/meet/123456789012345678901",
            "/meet/12345678a",
            "/meet/12345678/extra",
            "/dl/launcher/launcher.html",
            "/dl/launcher/launcher.html?url=",
            "/dl/launcher/launcher.html?url=https%3A%2F%2Fevil.com%2Fmeet%2F12345678",
            "/dl/launcher/launcher.html?url=.evil.com%2Fmeet%2F12345678",
            "/dl/launcher/launcher.html?url=%2F%0A_%23%2Fmeet%2F12345678",
        ] {
            assert_eq!(
                Meeting::from_link(&format!("https://teams.microsoft.com{path}")),
                Err(MeetingError::NotAMeeting(Platform::Teams)),
                "{path}"
            );
        }
    }

    #[test]
    fn an_id_gives_its_canonical_address() {
        let join = "https://teams.microsoft.com/l/meetup-join/";
        for (id, native_id, url) in [
            ("2345678", "2345678", "https://teams.live.com/meet/2345678".to_owned()),
            ("234 567 890 123 4", "2345678901234", "https://teams.live.com/meet/2345678901234".to_owned()),
            ("19:meeting_AbC@thread.v2", "19:meeting_AbC@thread.v2", format!("{join}19%3Ameeting_AbC%40thread.v2/0")),
            ("19:meeting_AbC@thread.v2/0", "19:meeting_AbC@thread.v2", format!("{join}19%3Ameeting_AbC%40thread.v2/0")),
            (
                "19:a@thread.tacv2/1589823562000",
                "19:a@thread.tacv2/1589823562000",
                format!("{join}19%3Aa%40thread.tacv2/1589823562000"),
            ),
        ] {
            assert_eq!(Meeting::from_native_id(Platform::Teams, id), Ok(meeting(native_id, &url)));
        }
    }

    #[test]
    fn an_id_of_another_shape_is_refused() {
        let long = format!("19:{}@thread.v2", "a".repeat(250));
        for id in [
            "",
            "123456",
            "123456789012345678901",
            "19:a@thread.v2/",
            "19:a@thread.v2/0/0",
            "19:a@thread.v2/..",
            "19:a b@thread.v2",
            "19:a@b@thread.v2",
            "19:a?b@thread.v2",
            "19:ä@thread.v2",
            "19%3Aa%40thread.v2",
            "meeting_abc@thread.v2",
            &long,
        ] {
            assert_eq!(
                Meeting::from_native_id(Platform::Teams, id),
                Err(MeetingError::InvalidNativeId(Platform::Teams)),
                "{id}"
            );
        }
    }
}
