#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const NOW: &str = "2025-05-31T12:00:00Z";

fn class() -> Class {
    Class {
        name: "large".into(),
        cpu: 2,
        mem: 4096,
        instance_types: vec!["c6i.large".into()],
        max: 1,
        spot_max: 1,
        min_idle: 0,
    }
}

fn read(body: &str) -> Result<Announcement, Dropped> {
    Announcement::read(body, &class(), NOW.parse().unwrap())
}

fn body(field: &str, value: &str) -> String {
    let mut body = serde_json::json!({
        "instanceId": "i-12345678",
        "usageClass": "on-demand",
        "instanceType": "c6i.large",
        "cpu": 2,
        "mem": 4096,
        "resourceClass": "large",
        "threshold": "2025-05-31T12:20:00Z",
    });
    if !field.is_empty() {
        body[field] = serde_json::from_str(value).unwrap();
    }
    body.to_string()
}

#[test]
fn an_announcement_is_written_with_these_fields_in_this_form() {
    let attributes = Attributes {
        resource_class: Some("large".into()),
        usage_class: UsageClass::Spot,
        instance_type: Some("c6i.large".into()),
        cpu: 2,
        mem: 4096,
    };
    let written = Announcement::new("i-12345678", &attributes, "2025-05-31T12:20:00Z".parse().unwrap());
    assert_eq!(
        written.body(),
        r#"{"instanceId":"i-12345678","usageClass":"spot","instanceType":"c6i.large","cpu":2,"mem":4096,"resourceClass":"large","threshold":"2025-05-31T12:20:00.000Z"}"#
    );
    assert_eq!(read(written.body()), Ok(written));
}

#[test]
fn a_threshold_without_milliseconds_and_in_another_zone_is_understood() {
    assert_eq!(text(read(&body("", "")).unwrap().expires_at), "2025-05-31T12:20:00.000Z");
    let elsewhere = body("threshold", r#""2025-05-31T14:20:00.1239+02:00""#);
    assert_eq!(text(read(&elsewhere).unwrap().expires_at), "2025-05-31T12:20:00.123Z");
}

#[test]
fn a_message_that_cannot_be_believed_is_dropped_and_it_is_said_why() {
    let cases = [
        ("threshold", r#""2025-05-31T12:00:00Z""#, Dropped::Expired),
        ("threshold", r#""1999-01-01T00:00:00.000Z""#, Dropped::Expired),
        ("threshold", r#""soon""#, Dropped::Malformed),
        ("threshold", "1748693400", Dropped::Malformed),
        ("resourceClass", r#""xlarge""#, Dropped::OtherClass),
        ("resourceClass", r#""unheard-of""#, Dropped::OtherClass),
        ("cpu", "1", Dropped::TooSmall),
        ("mem", "4095", Dropped::TooSmall),
        ("cpu", "-2", Dropped::Malformed),
        ("cpu", r#""2""#, Dropped::Malformed),
        ("usageClass", r#""reserved""#, Dropped::Malformed),
        ("instanceId", r#""""#, Dropped::Malformed),
        ("instanceId", r#""i-1#2""#, Dropped::Malformed),
        ("instanceType", "null", Dropped::Malformed),
    ];
    for (field, value, why) in cases {
        assert_eq!(read(&body(field, value)), Err(why), "{field} {value}");
    }
    for broken in ["", "{}", "[]", "null", "not json", "{\"instanceId\":\"i-1\"}"] {
        assert_eq!(read(broken), Err(Dropped::Malformed), "{broken}");
    }
}

proptest! {
    #[test]
    fn no_message_whatever_it_says_does_more_than_be_dropped(text in "\\PC*", field in "(cpu|mem|threshold|instanceId)") {
        let _ = read(&text);
        let value = serde_json::Value::String(text).to_string();
        let read = read(&body(&field, &value));
        if let Ok(read) = read {
            prop_assert!(is_class_name(&read.instance));
            prop_assert!(read.expires_at > NOW.parse().unwrap());
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was_unless_it_is_over_or_too_small(
        instance in "i-[0-9a-f]{1,17}",
        spot: bool,
        cpu in 0u32..8,
        mem in 0u32..9000,
        threshold_ms in 1_748_692_000_000i64..1_748_694_000_000,
    ) {
        let now: Timestamp = NOW.parse().unwrap();
        let usage_class = if spot { UsageClass::Spot } else { UsageClass::OnDemand };
        let attributes = Attributes {
            resource_class: Some("large".into()),
            usage_class,
            instance_type: Some("c6i.large".into()),
            cpu,
            mem,
        };
        let written = Announcement::new(&instance, &attributes, from_millis(threshold_ms));
        let expected = if cpu < 2 || mem < 4096 {
            Err(Dropped::TooSmall)
        } else if threshold_ms <= now.as_millisecond() {
            Err(Dropped::Expired)
        } else {
            Ok(written.clone())
        };
        prop_assert_eq!(read(written.body()), expected);
    }
}
