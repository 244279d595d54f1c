//! Rules for all platforms: how pasted text is cleaned, which addresses are refused, which messages follow, and that
//! links and ids convert to each other.

use proptest::prelude::*;

use super::*;

fn native_id_of(link: &str) -> Result<(Platform, String), MeetingError> {
    Meeting::from_link(link).map(|meeting| (meeting.platform, meeting.native_id))
}

#[test]
fn what_chat_programs_add_around_a_link_is_removed() {
    for pasted in [
        "https://zoom.us/j/123456789",
        "  https://zoom.us/j/123456789\r\n",
        "<https://zoom.us/j/123456789>",
        "\"https://zoom.us/j/123456789\"",
        "'zoom.us/j/123456789'",
        "`zoom.us/j/123456789`",
        "“https://zoom.us/j/123456789”",
        "‘https://zoom.us/j/123456789’",
        "«https://zoom.us/j/123456789»",
        " \" <https://zoom.us/j/123456789> \" ",
        "\u{feff}https://zoom.us/j/123456789\u{200b}",
    ] {
        let meeting = Meeting::from_link(pasted);
        assert_eq!(meeting.map(|m| m.url).as_deref(), Ok("https://zoom.us/j/123456789"), "{pasted:?}");
    }
}

#[test]
fn an_address_that_is_not_surely_of_a_platform_is_refused() {
    for pasted in [
        "",
        " ",
        "<>",
        "\"",
        "hello",
        "81234567890",
        "abc-defg-hij",
        "https://",
        "https:///",
        "https://example.com/j/123456789",
        // Hosts that only look like the platform's.
        "https://evilzoom.us/j/123456789",
        "https://zoom.us.evil.com/j/123456789",
        "https://zoom.us./j/123456789",
        "https://.zoom.us/j/123456789",
        "https://a..zoom.us/j/123456789",
        "https://zoom.uss/j/123456789",
        "https://meet.google.com.evil.com/abc-defg-hij",
        "https://evil.meet.google.com/abc-defg-hij",
        "https://meet.google.com%2eevil.com/abc-defg-hij",
        "https://google.com/abc-defg-hij",
        "https://evil.teams.microsoft.com/meet/12345678",
        "https://teams.microsoft.com.evil.com/meet/12345678",
        "https://evil.com/https://zoom.us/j/123456789",
        "https://evil.com?https://zoom.us/j/123456789",
        "https://evil.com\\zoom.us/j/123456789",
        // A user name, a password or a port.
        "https://me@zoom.us/j/123456789",
        "https://@zoom.us/j/123456789",
        "https://:@zoom.us/j/123456789",
        "https://zoom.us@evil.com/j/123456789",
        "https://zoom.us:443/j/123456789",
        "https://zoom.us:/j/123456789",
        "zoom.us:443/j/123456789",
        "zoommtg://zoom.us:443/join?confno=123456789",
        // Unknown schemes, or schemes on the wrong platform.
        "ftp://zoom.us/j/123456789",
        "file:///zoom.us/j/123456789",
        "javascript:alert(1)//zoom.us/j/123456789",
        "javascript://zoom.us/j/123456789",
        "mailto:a@zoom.us",
        "https:zoom.us/j/123456789",
        "https:/zoom.us/j/123456789",
        "https:///zoom.us/j/123456789",
        "https:\\\\zoom.us/j/123456789",
        "//zoom.us/j/123456789",
        "://zoom.us/j/123456789",
        "https://https://zoom.us/j/123456789",
        "zoommtg:/join?confno=123456789",
        "zoommtg://evil.com/join?confno=123456789",
        "zoommtg://meet.google.com/abc-defg-hij",
        "msteams://zoom.us/j/123456789",
        "msteams:l/meetup-join/19:a@thread.v2/0",
        "msteams:///l/meetup-join/19:a@thread.v2/0",
        // White space and control characters inside.
        "https://zoom.us/j/123 456789",
        "https://zoom.us/j/123\t456789",
        "https://zo\nom.us/j/123456789",
        "https://zoom.us/j/123456789?pwd=\u{a0}x",
        "https://zoom.us/j/123456789\0",
        "join https://zoom.us/j/123456789",
        "https://zoom.us/j/123456789 https://zoom.us/j/987654321",
    ] {
        assert_eq!(Meeting::from_link(pasted), Err(MeetingError::NotUnderstood), "{pasted:?}");
    }
}

#[test]
fn a_backslash_cannot_hide_the_host_that_is_opened() {
    assert_eq!(
        Meeting::from_link("https://zoom.us\\@evil.com/j/123456789"),
        Err(MeetingError::NotAMeeting(Platform::Zoom))
    );
}

#[test]
fn an_address_inside_the_query_is_no_scheme() {
    assert_eq!(
        native_id_of("zoom.us/j/123456789?from=https://evil.com/"),
        Ok((Platform::Zoom, "123456789".to_owned()))
    );
}

#[test]
fn a_link_may_have_2048_characters_and_no_more() {
    let link = |length: usize| {
        let start = "https://zoom.us/j/123456789?pwd=";
        format!("{start}{}", "a".repeat(length - start.len()))
    };
    assert!(Meeting::from_link(&link(2048)).is_ok());
    assert!(Meeting::from_link(&format!("  <{}>\n", link(2048))).is_ok());
    assert_eq!(Meeting::from_link(&link(2049)), Err(MeetingError::NotUnderstood));
    // Within the limit as pasted, but too long after its query is escaped.
    let swelling = format!("https://zoom.us/j/123456789?pwd={}", "é".repeat(500));
    assert_eq!(Meeting::from_link(&swelling), Err(MeetingError::NotUnderstood));
}

#[test]
fn a_platform_has_one_name_everywhere() {
    for platform in Platform::ALL {
        let name = platform.as_str();
        assert_eq!(platform.to_string(), name);
        assert_eq!(name.parse(), Ok(platform));
        assert_eq!(serde_json::to_value(platform).ok(), Some(serde_json::Value::from(name)));
        assert_eq!(serde_json::from_value::<Platform>(name.into()).ok(), Some(platform));
        assert!(UnknownPlatform::Unknown.to_string().contains(name));
    }
    assert_eq!("Zoom".parse::<Platform>(), Err(UnknownPlatform::Unknown));
}

#[test]
fn messages_name_the_forms_that_would_be_taken() {
    let [meet, teams, zoom] = Platform::ALL.map(|platform| format!("{} ({})", platform.label(), platform.link_forms()));
    assert_eq!(UNDERSTOOD_FORMS, format!("{meet}, {teams} and {zoom}"));
    let message = MeetingError::NotUnderstood.to_string();
    assert!(message.contains(UNDERSTOOD_FORMS), "{message}");
    for platform in Platform::ALL {
        let message = MeetingError::NotAMeeting(platform).to_string();
        assert!(message.contains(platform.link_forms()), "{message}");
        let message = MeetingError::InvalidNativeId(platform).to_string();
        assert!(message.contains(platform.id_form()), "{message}");
    }
}

fn valid_ids() -> impl Strategy<Value = (Platform, String)> {
    prop_oneof![
        "[a-z]{3}-[a-z]{4}-[a-z]{3}".prop_map(|id| (Platform::GoogleMeet, id)),
        "[0-9]{9,11}".prop_map(|id| (Platform::Zoom, id)),
        "[a-z][a-z0-9._-]{4,39}".prop_map(|id| (Platform::Zoom, id)),
        "[0-9]{7,20}".prop_map(|id| (Platform::Teams, id)),
        "19:[!-~&&[^/\\\\%?#@]]{1,60}@(thread\\.(v2|tacv2|skype)|unq\\.gbl\\.spaces)(/[1-9][0-9]{0,12})?"
            .prop_map(|id| (Platform::Teams, id)),
    ]
}

/// Text that is a link or similar to one. Arbitrary text would not pass the first check.
fn near_links() -> impl Strategy<Value = String> {
    let start = proptest::sample::select(vec![
        "meet.google.com/",
        "http://acme.zoom.us/j/",
        "https://zoom.us/wc/join/",
        "ZOOM.US/my/",
        "zoommtg://zoom.us/join?pwd=x&confno=",
        "https://teams.microsoft.com/l/meetup-join/",
        "https://teams.microsoft.com/_#/l/meetup-join/",
        "teams.microsoft.com/dl/launcher/launcher.html?url=%2F_%23%2Fl%2Fmeetup-join%2F",
        "https://teams.live.com/meet/",
        "msteams:/l/meetup-join/",
    ]);
    let middle = prop_oneof![
        4 => valid_ids().prop_map(|(_, id)| id),
        1 => "19%3ameeting_[A-Za-z]{1,9}%40thread.v2",
        1 => "[a-zA-Z0-9.%/:@_-]{0,14}",
    ];
    let end = prop_oneof![Just(String::new()), "[/?&#]{1,2}(pwd=|p=|context=)?\\PC{0,9}", "/[a-z0-9%./]{0,6}",];
    (start, middle, end).prop_map(|(start, middle, end)| format!("{start}{middle}{end}"))
}

proptest! {
    #[test]
    fn an_id_leads_to_an_address_that_leads_back_to_it((platform, id) in valid_ids()) {
        let meeting = Meeting::from_native_id(platform, &id);
        prop_assert!(meeting.is_ok(), "{platform} {id}");
        if let Ok(meeting) = meeting {
            prop_assert_eq!(&meeting.native_id, &id);
            prop_assert_eq!(Meeting::from_link(&meeting.url), Ok(meeting));
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = Meeting::from_link(&text);
        for platform in Platform::ALL {
            let _ = Meeting::from_native_id(platform, &text);
        }
    }

    #[test]
    fn a_link_that_is_taken_gives_an_id_and_an_address_that_are_taken_too(text in near_links()) {
        if let Ok(meeting) = Meeting::from_link(&text) {
            let of_id = Meeting::from_native_id(meeting.platform, &meeting.native_id);
            prop_assert_eq!(of_id.map(|m| m.native_id), Ok(meeting.native_id.clone()));
            prop_assert!(meeting.url.starts_with("https://") && !meeting.url.contains('#'));
            prop_assert_eq!(Meeting::from_link(&meeting.url), Ok(meeting));
        }
    }
}
