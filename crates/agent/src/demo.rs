//! The demo bot: what the default pools and all probes run. A newcomer sees the whole life of a bot, and an operator that
//! a pool works. It joins a pretend meeting, says a few lines, obeys commands, and leaves. It speaks to the agent as any
//! bot does: by lines.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

const LINES: [&str; 5] = [
    "Good morning, everyone.",
    "This is a simulated meeting without other participants.",
    "I say a few sentences, so that there is a transcript to read.",
    "To make me leave, call DELETE /bots/{id}.",
    "Otherwise I leave by myself after a short time.",
];

const PROBE_LINES: [&str; 1] =
    ["This is a probe: the demo bot runs in a slot of the pool, instead of the command of the pool."];

/// The argument with which `greenroom` and `greenroom-agent` run the demo bot.
pub const COMMAND: &str = "demo-bot";

/// Plays the bot. `config.demo_ms` of the bot's data says how long it stays, `config.demo_exit_code` how it ends.
pub fn play() -> ExitCode {
    let data: Value =
        std::env::var("BOT_DATA").ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let stays = Duration::from_millis(data["config"]["demo_ms"].as_u64().unwrap_or(30_000));
    let code = data["config"]["demo_exit_code"].as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(0);
    let commands = listen();
    println!("demo bot joins {}", data["meeting_url"].as_str().unwrap_or("a meeting"));
    say(&json!({"event": "joined"}));
    let lines = if data["probe"] == true { &PROBE_LINES[..] } else { &LINES[..] };
    let pause = stays / u32::try_from(lines.len() + 1).unwrap_or(1);
    for (number, line) in lines.iter().enumerate() {
        if told_to_leave(&commands, pause) {
            return ExitCode::from(code);
        }
        let start = number as f64;
        let segment = json!({"start_time": start, "end_time": start + 0.9, "text": line, "speaker": "Demo bot"});
        say(&json!({"event": "transcript", "segments": [segment]}));
    }
    told_to_leave(&commands, pause);
    ExitCode::from(code)
}

fn say(event: &Value) {
    let mut out = io::stdout().lock();
    // Without an agent that reads there is nobody to tell.
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}

fn listen() -> mpsc::Receiver<Value> {
    let (heard, commands) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Ok(command) = serde_json::from_str(&line)
                && heard.send(command).is_err()
            {
                return;
            }
        }
    });
    commands
}

/// Waits as long as `pause`; true when it is to leave.
fn told_to_leave(commands: &mpsc::Receiver<Value>, pause: Duration) -> bool {
    let until = std::time::Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        match commands.recv_timeout(left) {
            Ok(command) if command["action"] == "leave" => return true,
            Ok(command) => println!("demo bot received: {command}"),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => {
                // Nobody tells it anything; it stays all the same.
                std::thread::sleep(left);
                return false;
            }
        }
    }
}
