//! Meeting services that bots cannot join yet. The list lets a refusal name the service.

/// A service: its name, its name in the API, and the domains of its links.
struct Service {
    name: &'static str,
    word: &'static str,
    domains: &'static [&'static str],
}

const SERVICES: [Service; 15] = [
    Service { name: "Webex", word: "webex", domains: &["webex.com"] },
    Service { name: "GoToMeeting", word: "gotomeeting", domains: &["gotomeeting.com", "gotomeet.me", "goto.com"] },
    Service { name: "BlueJeans", word: "bluejeans", domains: &["bluejeans.com"] },
    Service { name: "Whereby", word: "whereby", domains: &["whereby.com"] },
    Service { name: "Jitsi", word: "jitsi", domains: &["jit.si", "jitsi.org", "8x8.vc"] },
    Service { name: "Slack", word: "slack", domains: &["slack.com"] },
    Service { name: "Discord", word: "discord", domains: &["discord.com", "discord.gg"] },
    Service { name: "Skype", word: "skype", domains: &["skype.com"] },
    Service { name: "Amazon Chime", word: "chime", domains: &["chime.aws"] },
    Service { name: "RingCentral", word: "ringcentral", domains: &["ringcentral.com"] },
    Service { name: "Zoho Meeting", word: "zoho", domains: &["meeting.zoho.com", "meeting.zoho.eu"] },
    Service { name: "Livestorm", word: "livestorm", domains: &["livestorm.co"] },
    Service { name: "FaceTime", word: "facetime", domains: &["facetime.apple.com"] },
    Service { name: "BigBlueButton", word: "bigbluebutton", domains: &["bigbluebutton.org"] },
    Service { name: "Gather", word: "gather", domains: &["gather.town"] },
];

/// The service of a host.
pub(super) fn of_host(host: &str) -> Option<&'static str> {
    let owns = |domain: &&str| host.strip_suffix(*domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    SERVICES.iter().find(|service| service.domains.iter().any(owns)).map(|service| service.name)
}

/// The service with this name, in any spelling.
pub(super) fn named(name: &str) -> Option<&'static str> {
    let bare = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let word = bare(name);
    let is = |service: &&Service| word == service.word || word == bare(service.name);
    SERVICES.iter().find(is).map(|service| service.name)
}

#[cfg(test)]
mod tests {
    use crate::meeting::{Meeting, MeetingError, Platform, UnknownPlatform};

    #[test]
    fn a_service_that_is_not_supported_is_named() {
        for (pasted, name) in [
            ("https://acme.webex.com/meet/jane", "Webex"),
            ("https://meet.goto.com/123456789", "GoToMeeting"),
            ("global.gotomeeting.com/join/123", "GoToMeeting"),
            ("https://bluejeans.com/123456789", "BlueJeans"),
            ("https://whereby.com/room", "Whereby"),
            ("https://meet.jit.si/Room", "Jitsi"),
            ("https://app.slack.com/huddle/T0/C0", "Slack"),
            ("https://discord.gg/abc", "Discord"),
        ] {
            assert_eq!(Meeting::from_link(pasted), Err(MeetingError::NotSupported(name)), "{pasted}");
            assert!(MeetingError::NotSupported(name).to_string().starts_with(&format!("{name} is not supported yet")));
        }
        for pasted in ["https://webex.com.evil.example/j", "https://notwebex.com/meet/jane"] {
            assert_eq!(Meeting::from_link(pasted), Err(MeetingError::NotUnderstood), "{pasted}");
        }
        for name in ["webex", "Webex", "go-to-meeting", "amazon_chime"] {
            let error = name.parse::<Platform>().err();
            assert!(matches!(error, Some(UnknownPlatform::NotSupported(_))), "{name}: {error:?}");
        }
    }
}
