//! moto, which stands in for AWS in tests: its address, pools that only one test uses, and launch templates, which the
//! crate itself never creates. Tests inside the crate and tests of the server use this file too.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use aws::{Class, Pace, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const REGION: &str = "eu-central-1";
pub const ZONE: &str = "eu-central-1a";

/// The address of moto. All tests share it, so each test uses its own names.
pub fn endpoint() -> String {
    std::env::var("TEST_MOTO_URL").expect("TEST_MOTO_URL is not set; ./scripts/test starts moto and sets it")
}

/// A prefix of names that no other test uses.
pub fn prefix() -> String {
    format!("t{}-", uuid::Uuid::new_v4().simple())
}

/// A class whose runners have 2 cpu and 4 GiB for each step of its size.
pub fn class(name: &str, size: u32, instance_types: &[&str], max: u32, spot_max: u32) -> Class {
    Class {
        name: name.to_owned(),
        cpu: 2 * size,
        mem: 4096 * size,
        instance_types: instance_types.iter().map(|name| (*name).to_owned()).collect(),
        max,
        spot_max,
        min_idle: 0,
    }
}

/// The settings of a pool that does not exist yet, with names that no other test uses.
pub fn settings(classes: Vec<Class>) -> Settings {
    let prefix = prefix();
    Settings {
        region: REGION.to_owned(),
        endpoint: Some(endpoint()),
        table: format!("{prefix}runners"),
        queue_prefix: prefix,
        launch_template: None,
        subnets: Vec::new(),
        zones: vec![ZONE.to_owned()],
        classes,
        pace: Pace::default(),
        installation: "here".to_owned(),
    }
}

/// Creates everything that a pool needs, with a launch template for each class. So machines have the first type of
/// their class.
pub async fn make(settings: &Settings) {
    for class in &settings.classes {
        let name = format!("{}{}", settings.queue_prefix, class.name);
        let template = launch_template(&name, &class.instance_types[0]).await;
        let one_class = Settings { launch_template: Some(template), classes: vec![class.clone()], ..settings.clone() };
        aws::init(&one_class).await.unwrap();
    }
}

/// Creates a launch template and returns its id. At moto, machines of a group have the template's instance type,
/// whatever types the group has.
pub async fn launch_template(name: &str, instance_type: &str) -> String {
    let data = [("ImageId", "ami-12345678"), ("InstanceType", instance_type)];
    let data = data.map(|(key, value)| format!("&LaunchTemplateData.{key}={value}")).concat();
    let answer = ec2("CreateLaunchTemplate", &format!("&LaunchTemplateName={name}{data}")).await;
    between(&answer, "<launchTemplateId>", "</launchTemplateId>").expect(&answer)
}

/// The id of a subnet that moto has from the beginning.
pub async fn subnet() -> String {
    let answer = ec2("DescribeSubnets", "").await;
    between(&answer, "<subnetId>", "</subnetId>").expect(&answer)
}

/// Calls EC2, for which there is no library here. moto reads only the service's name from the credentials.
async fn ec2(action: &str, parameters: &str) -> String {
    let endpoint = endpoint();
    let address = endpoint.strip_prefix("http://").expect("moto uses plain HTTP").trim_end_matches('/');
    let body = format!("Action={action}&Version=2016-11-15{parameters}");
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=moto/20250101/{REGION}/ec2/aws4_request, SignedHeaders=host, Signature=0\
         \r\n\r\n{body}",
        body.len(),
    );
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{action}: {answer}");
    answer
}

fn between(text: &str, before: &str, after: &str) -> Option<String> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(found, _)| found.to_owned())
}
