//! `health`: whether the server takes requests, for people and for health checks of containers.

use std::time::Duration;

use crate::error::Done;
use crate::options::RemoteOptions;
use crate::pages::rows;
use crate::show::text;

const LIMIT: Duration = Duration::from_secs(5);

pub async fn run(options: &RemoteOptions) -> Done {
    let (client, out) = (options.any_client()?, options.output());
    let answer = client.get_within(&["readyz"], &[], LIMIT).await?;
    if out.json {
        return out.answer(&answer);
    }
    out.line(&text(&answer["status"]))?;
    for missing in rows(&answer, "missing") {
        out.note(&format!("missing: {}", text(missing)));
    }
    Ok(())
}
