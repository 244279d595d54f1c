//! Google Meet: every meeting has a code of ten letters, written `abc-defg-hij`.
//! The code is the whole path of the link, and the query only says which account opens it.

use url::Url;

use super::segments;

pub(super) const LINK_FORMS: &str = "https://meet.google.com/abc-defg-hij";
pub(super) const ID_FORM: &str =
    "a code of three, four and three letters such as abc-defg-hij (the dashes may be left out)";

const HOST: &str = "meet.google.com";

pub(super) fn owns(host: &str) -> bool {
    host == HOST
}

pub(super) fn read(mut url: Url) -> Option<(String, Url)> {
    let [written] = segments(&url)[..] else {
        return None;
    };
    let code = code(written)?;
    // Meet reliably opens only its own spelling of a code.
    if written != code {
        url.set_path(&code);
    }
    Some((code, url))
}

pub(super) fn canonical(id: &str) -> Option<(String, String)> {
    let code = code(id)?;
    let url = format!("https://{HOST}/{code}");
    Some((code, url))
}

fn code(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('-').collect();
    let letters = match parts[..] {
        [all] => all.to_owned(),
        [a, b, c] if (a.len(), b.len(), c.len()) == (3, 4, 3) => [a, b, c].concat(),
        _ => return None,
    };
    if letters.len() != 10 || !letters.bytes().all(|b| b.is_ascii_alphabetic()) {
        return None;
    }
    let mut code = letters.to_ascii_lowercase();
    code.insert(7, '-');
    code.insert(3, '-');
    Some(code)
}

#[cfg(test)]
mod tests {
    use crate::meeting::{Meeting, MeetingError, Platform};

    #[test]
    fn every_pasted_form_of_a_meet_link_gives_the_code_and_the_address_to_open() {
        let plain = "https://meet.google.com/abc-defg-hij";
        for (pasted, url) in [
            ("https://meet.google.com/abc-defg-hij", plain),
            ("http://meet.google.com/abc-defg-hij", plain),
            ("meet.google.com/abc-defg-hij", plain),
            ("MEET.Google.com/ABC-Defg-HIJ", plain),
            ("HTTPS://meet.google.com/abcdefghij", plain),
            ("https://meet.google.com/ABCDEFGHIJ#top", plain),
            ("https://meet.google.com/abc-defg-hij/", "https://meet.google.com/abc-defg-hij/"),
            (
                "https://meet.google.com/abc-defg-hij?authuser=1&pli=1",
                "https://meet.google.com/abc-defg-hij?authuser=1&pli=1",
            ),
            ("meet.google.com/abcdefghij?hs=122", "https://meet.google.com/abc-defg-hij?hs=122"),
        ] {
            let expected =
                Meeting { platform: Platform::GoogleMeet, native_id: "abc-defg-hij".to_owned(), url: url.to_owned() };
            assert_eq!(Meeting::from_link(pasted), Ok(expected), "{pasted}");
        }
    }

    #[test]
    fn other_pages_of_meet_are_not_meetings() {
        for pasted in [
            "https://meet.google.com",
            "https://meet.google.com/",
            "https://meet.google.com/new",
            "https://meet.google.com/landing",
            "https://meet.google.com/lookup/abcdefghij",
            "https://meet.google.com/abc-defghij",
            "https://meet.google.com/abcd-efg-hij",
            "https://meet.google.com/abc-defg-hi1",
            "https://meet.google.com/abc-defg-hij/extra",
            "https://meet.google.com//abc-defg-hij",
            "https://meet.google.com/abc-defg-hij//",
            "https://meet.google.com/abc-défg-hij",
            "https://meet.google.com/abc-defg-hij%00",
            "https://meet.google.com/?abc-defg-hij",
            "https://meet.google.com/#/abc-defg-hij",
        ] {
            assert_eq!(Meeting::from_link(pasted), Err(MeetingError::NotAMeeting(Platform::GoogleMeet)), "{pasted}");
        }
    }

    #[test]
    fn a_code_is_taken_with_or_without_dashes_and_in_any_case() {
        for id in ["abc-defg-hij", "ABCDEFGHIJ", "  Abc-Defg-Hij\n"] {
            let expected = Meeting {
                platform: Platform::GoogleMeet,
                native_id: "abc-defg-hij".to_owned(),
                url: "https://meet.google.com/abc-defg-hij".to_owned(),
            };
            assert_eq!(Meeting::from_native_id(Platform::GoogleMeet, id), Ok(expected));
        }
    }

    #[test]
    fn a_code_of_another_shape_is_refused() {
        for id in [
            "",
            "-",
            "abc",
            "abc-defg",
            "abcd-efg-hij",
            "--abcdefghij",
            "abc-defg-hij-",
            "abc defg hij",
            "éééé-ab",
            "日本語ab",
            "81234567890",
        ] {
            assert_eq!(
                Meeting::from_native_id(Platform::GoogleMeet, id),
                Err(MeetingError::InvalidNativeId(Platform::GoogleMeet)),
                "{id}"
            );
        }
    }
}
