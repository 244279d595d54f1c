//! Zoom. A meeting has a number of 9 to 11 digits, or is a personal room with a chosen name. Links have many hosts
//! (data centres, companies) and many paths. All are kept as pasted, because the passcode in `pwd` works only where it
//! was made.

use url::Url;

use super::{is_digits, raw_parameter, segments};

pub(super) const LINK_FORMS: &str = "https://zoom.us/j/81234567890, \
    also /w/, /s/, /wc/ and /my/name, on any Zoom subdomain";
pub(super) const ID_FORM: &str = "9 to 11 digits such as 812 3456 7890, or the name of \
    a personal link (5 to 40 letters, digits, dots, dashes and underscores, starting with a letter)";

/// The names that Zoom allows in personal links.
pub(super) const NAME_FORM: &str = "5 to 40 letters, digits, dots, dashes and underscores, and begin with a letter";

const DOMAINS: [&str; 3] = ["zoom.us", "zoom.com", "zoomgov.com"];

/// The parameters of a program link that a browser also needs: the passcode and a registration token.
const CREDENTIALS: [&str; 2] = ["pwd", "tk"];

pub(super) fn owns(host: &str) -> bool {
    DOMAINS.iter().any(|domain| {
        host.strip_suffix(domain).is_some_and(|labels| {
            labels.is_empty()
                || labels.strip_suffix('.').is_some_and(|labels| labels.split('.').all(|label| !label.is_empty()))
        })
    })
}

pub(super) fn read(url: Url) -> Option<(String, Url)> {
    let native_id = match segments(&url)[..] {
        ["j" | "w" | "s", id] | ["wc", id] | ["wc", id, "join" | "start"] | ["wc", "join", id] => {
            number(id)?.to_owned()
        }
        ["my", name] => personal_name(name)?,
        _ => return None,
    };
    Some((native_id, url))
}

/// Whether it is a personal link with a name that Zoom does not allow.
pub(super) fn is_bad_personal_link(url: &Url) -> bool {
    matches!(segments(url)[..], ["my", name] if !name.is_empty() && personal_name(name).is_none())
}

/// Converts a link of the Zoom program to the web form. The caller has already replaced its scheme with https.
pub(super) fn read_app_link(url: &Url) -> Option<(String, Url)> {
    let ["join"] = segments(url)[..] else {
        return None;
    };
    let number = number(raw_parameter(url, "confno")?)?;
    let credentials: Vec<String> = CREDENTIALS
        .iter()
        .filter_map(|name| {
            let value = raw_parameter(url, name).filter(|value| !value.is_empty())?;
            Some(format!("{name}={value}"))
        })
        .collect();
    let mut web = url.clone();
    web.set_path(&format!("/j/{number}"));
    web.set_query((!credentials.is_empty()).then(|| credentials.join("&")).as_deref());
    Some((number.to_owned(), web))
}

pub(super) fn canonical(id: &str) -> Option<(String, String)> {
    // People copy the number in the groups that invitations show. A name must keep its dashes.
    let bare: String = id.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
    if let Some(number) = number(&bare) {
        return Some((number.to_owned(), format!("https://zoom.us/j/{number}")));
    }
    let name = personal_name(id)?;
    let url = format!("https://zoom.us/my/{name}");
    Some((name, url))
}

fn number(text: &str) -> Option<&str> {
    is_digits(text, 9..=11).then_some(text)
}

fn personal_name(text: &str) -> Option<String> {
    let valid = (5..=40).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    valid.then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use crate::meeting::{Meeting, MeetingError, Platform};

    fn meeting(native_id: &str, url: &str) -> Meeting {
        Meeting { platform: Platform::Zoom, native_id: native_id.to_owned(), url: url.to_owned() }
    }

    #[test]
    fn every_path_of_a_zoom_meeting_gives_its_number() {
        for path in [
            "/j/81234567890",
            "/j/81234567890/",
            "/w/81234567890",
            "/s/81234567890",
            "/wc/81234567890",
            "/wc/81234567890/join",
            "/wc/81234567890/start",
            "/wc/join/81234567890",
            "/j/81234567890?pwd=aBc.1&omn=9",
            "/w/81234567890?tk=q-_w&pwd=x%2By",
        ] {
            for host in ["zoom.us", "us02web.zoom.us", "app.zoom.com", "a.b.zoomgov.com"] {
                let url = format!("https://{host}{path}");
                assert_eq!(Meeting::from_link(&url), Ok(meeting("81234567890", &url)), "{url}");
            }
        }
    }

    #[test]
    fn a_zoom_link_on_a_company_subdomain_keeps_its_password() {
        assert_eq!(
            Meeting::from_link("ACME.Zoom.us/j/123456789?pwd=QUJD.1&from=addon#success"),
            Ok(meeting("123456789", "https://acme.zoom.us/j/123456789?pwd=QUJD.1&from=addon"))
        );
    }

    #[test]
    fn a_personal_link_has_its_name_as_id_and_keeps_its_spelling_in_the_address() {
        for (pasted, name) in [
            ("https://zoom.us/my/Jane.Doe", "jane.doe"),
            ("https://acme.zoom.us/my/jane-doe_2?pwd=1", "jane-doe_2"),
            ("https://zoom.us/my/abcde", "abcde"),
        ] {
            assert_eq!(Meeting::from_link(pasted), Ok(meeting(name, pasted)));
        }
    }

    #[test]
    fn a_link_of_the_zoom_program_becomes_a_web_link_with_its_password() {
        for (pasted, url) in [
            (
                "zoommtg://zoom.us/join?confno=81234567890&pwd=a%2Bb&zc=0&browser=chrome",
                "https://zoom.us/j/81234567890?pwd=a%2Bb",
            ),
            (
                "ZoomMtg://Acme.Zoom.us/join?action=join&tk=t.0&confno=81234567890&pwd=p#x",
                "https://acme.zoom.us/j/81234567890?pwd=p&tk=t.0",
            ),
            ("zoommtg://zoom.us/join/?confno=81234567890&pwd=", "https://zoom.us/j/81234567890"),
        ] {
            assert_eq!(Meeting::from_link(pasted), Ok(meeting("81234567890", url)), "{pasted}");
        }
    }

    #[test]
    fn other_pages_of_zoom_are_not_meetings() {
        for pasted in [
            "https://zoom.us",
            "https://zoom.us/j/",
            "https://zoom.us/j/12345678",
            "https://zoom.us/j/123456789012",
            "https://zoom.us/j/+1234567890",
            "https://zoom.us/j/8123456789٠",
            "https://zoom.us/j/812-3456-7890",
            "https://zoom.us/j/81234567890/../../x",
            "https://zoom.us/J/81234567890",
            "https://zoom.us/wc/81234567890/leave",
            "https://zoom.us/wc/join",
            "https://zoom.us/rec/share/81234567890",
            "https://zoom.us/my/",
            "https://zoom.us/my/jane.doe/extra",
            "https://zoom.us/join?confno=81234567890",
            "zoommtg://zoom.us/start?confno=81234567890",
            "zoommtg://zoom.us/join?confno=8123",
            "zoommtg://zoom.us/join",
        ] {
            assert_eq!(Meeting::from_link(pasted), Err(MeetingError::NotAMeeting(Platform::Zoom)), "{pasted}");
        }
    }

    #[test]
    fn a_personal_link_with_a_name_that_zoom_does_not_give_says_what_such_names_are() {
        for name in ["1jane", "jane", "jane%20doe"] {
            let pasted = format!("https://zoom.us/my/{name}");
            assert_eq!(Meeting::from_link(&pasted), Err(MeetingError::NotAPersonalName), "{pasted}");
        }
        assert!(MeetingError::NotAPersonalName.to_string().contains("5 to 40 letters"));
    }

    #[test]
    fn a_number_is_taken_as_invitations_print_it() {
        for id in ["81234567890", "812 3456 7890", "812-3456-7890", "812\u{a0}3456\u{a0}7890", " 81234567890\n"] {
            assert_eq!(
                Meeting::from_native_id(Platform::Zoom, id),
                Ok(meeting("81234567890", "https://zoom.us/j/81234567890")),
                "{id}"
            );
        }
    }

    #[test]
    fn a_personal_name_keeps_its_dashes() {
        assert_eq!(
            Meeting::from_native_id(Platform::Zoom, "Jane-Doe.1"),
            Ok(meeting("jane-doe.1", "https://zoom.us/my/jane-doe.1"))
        );
    }

    #[test]
    fn a_number_or_name_of_another_shape_is_refused() {
        let long = "a".repeat(41);
        for id in [
            "",
            "-",
            "12345678",
            "123456789012",
            "812 3456 789x",
            "jane",
            "jane doe",
            ".jane",
            "jané.doe",
            "../../evil",
            "jane/doe",
            &long,
        ] {
            assert_eq!(
                Meeting::from_native_id(Platform::Zoom, id),
                Err(MeetingError::InvalidNativeId(Platform::Zoom)),
                "{id}"
            );
        }
    }
}
