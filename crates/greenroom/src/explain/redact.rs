//! Texts without the operator's secrets. Errors of providers and lines of logs may name hosts, addresses, paths, tokens
//! and ids of machines, which users must not see. In doubt a word is replaced: a user loses little by it.

use std::net::Ipv6Addr;

const ADDRESS: &str = "[address]";
const PATH: &str = "[path]";
const TOKEN: &str = "[token]";
const ID: &str = "[id]";

/// The beginnings of tokens. Greenroom's own come first.
const TOKENS: [&str; 13] =
    ["grb_", "grs_", "grk_", "grp_", "grr_", "gra_", "whsec_", "ghp_", "github_pat_", "glpat-", "akia", "asia", "eyj"];
/// Words whose value is a secret.
const SECRETS: [&str; 10] =
    ["password", "passwd", "secret", "token", "apikey", "api_key", "api-key", "authorization", "credential", "cookie"];
/// Words before a secret, as in `Authorization: Bearer …`.
const SCHEMES: [&str; 3] = ["bearer", "basic", "digest"];
/// The shortest word that is taken for an id because of its length.
const LONG: usize = 20;

/// Whether the next word is a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretFollows {
    No,
    /// Only after a colon: `"token": "…"` has a secret, and `token expired` has none.
    AfterColon,
    Yes,
}

/// The text with a placeholder for each word that may be a secret of the operator.
pub fn redact(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut secret_follows = SecretFollows::No;
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(end_of_word(rest));
        if !word.is_empty() {
            redacted.push_str(&redact_word(word, secret_follows == SecretFollows::Yes));
            secret_follows = secret_after(word, secret_follows);
        }
        let end = after.find(|c| !is_separator(c)).unwrap_or(after.len());
        let (separators, after) = after.split_at(end);
        redacted.push_str(separators);
        rest = after;
    }
    redacted
}

/// Signs that end every word.
fn ends_word(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '`' | '<' | '>')
}

/// Signs between words. An address or a path may contain some of them.
fn is_separator(c: char) -> bool {
    ends_word(c) || matches!(c, '(' | ')' | '[' | ']' | '{' | '}' | ',' | ';' | '|')
}

fn end_of_word(text: &str) -> usize {
    let end = text.find(is_separator).unwrap_or(text.len());
    let word = &text[..end];
    if word.contains("://") || word.starts_with('/') {
        let whole = &text[..text.find(ends_word).unwrap_or(text.len())];
        return whole.trim_end_matches(is_separator).len();
    }
    end
}

/// What follows a word: a secret after `password:`, `token=`, `Bearer` or `Authorization: Bearer`.
fn secret_after(word: &str, before: SecretFollows) -> SecretFollows {
    let lower = word.to_lowercase();
    let name = lower.trim_end_matches([':', '=']);
    let has_colon = name.len() < lower.len();
    if name.is_empty() {
        return if before == SecretFollows::No { SecretFollows::No } else { SecretFollows::Yes };
    }
    // A token may end as the name of a secret does.
    if placeholder(name).is_some() {
        return SecretFollows::No;
    }
    match name {
        name if SCHEMES.contains(&name) => SecretFollows::Yes,
        name if !is_secret_name(name) => SecretFollows::No,
        "token" | "tokens" | "cookie" | "cookies" | "credential" | "credentials" if !has_colon => {
            SecretFollows::AfterColon
        }
        _ => SecretFollows::Yes,
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.trim_end_matches('s');
    SECRETS.iter().any(|secret| name.ends_with(secret))
}

fn redact_word(word: &str, is_secret: bool) -> String {
    // The end of a sentence is not part of a word.
    let core = word.trim_end_matches(['.', ':', '!', '?']);
    let tail = &word[core.len()..];
    if core.is_empty() || core.chars().all(|c| matches!(c, '=' | '-' | '/' | '*' | '+' | '&')) {
        return word.to_owned();
    }
    if is_secret && !SCHEMES.contains(&core.to_lowercase().as_str()) {
        return format!("{TOKEN}{tail}");
    }
    if let Some(placeholder) = placeholder(core) {
        return format!("{placeholder}{tail}");
    }
    // `host=10.0.0.1`, `password=hunter2`
    if let Some((name, value)) = core.split_once('=') {
        let is_secret = is_secret_name(&name.to_lowercase());
        let value = if value.is_empty() { String::new() } else { redact_word(value, is_secret) };
        return format!("{}={value}{tail}", redact_word(name, false));
    }
    word.to_owned()
}

/// What stands for this word, if it may be a secret. A word without `=` is judged as a whole.
fn placeholder(word: &str) -> Option<&'static str> {
    let lower = word.to_lowercase();
    if TOKENS.iter().any(|token| begins_part(&lower, token)) {
        return Some(TOKEN);
    }
    if lower.contains("://") || lower.contains("%3a%2f%2f") || lower.contains('@') {
        return Some(ADDRESS);
    }
    if is_path(&lower) {
        return Some(PATH);
    }
    if lower.contains('=') {
        return None;
    }
    if is_address(&lower) {
        return Some(ADDRESS);
    }
    if is_id(&lower) {
        return Some(ID);
    }
    None
}

/// Whether the word, or a part of it after a sign, begins with this text.
fn begins_part(word: &str, beginning: &str) -> bool {
    word.match_indices(beginning).any(|(at, _)| {
        // These three begin ordinary words too, so there must be more behind them.
        let needs_length = !beginning.ends_with(['_', '-']);
        let before = word[..at].chars().next_back();
        let is_part = before.is_none_or(|c| !c.is_alphanumeric());
        match needs_length {
            true => is_part && word.len() - at >= 16,
            // Greenroom's tokens count wherever they are.
            false => word.len() - at > beginning.len(),
        }
    })
}

fn is_path(word: &str) -> bool {
    if word.contains('\\') || word.contains("%2f") || word.contains(":/") || word.contains("=/") {
        return true;
    }
    let slashes = word.matches('/').count();
    let starts = ["/", "~/", "./", "../"].iter().any(|start| word.starts_with(start) && word.len() > start.len());
    // `and/or` is no path, but `registry/bot:1` and `a/b/c` may be.
    starts || slashes > 1 || (slashes == 1 && word.contains(['.', ':', '_']))
}

/// Whether a word is, or contains, an IP address or the name of a host.
fn is_address(word: &str) -> bool {
    let bare = word.split(['%', '/']).next().unwrap_or(word);
    if bare.contains(':') && (bare.parse::<Ipv6Addr>().is_ok() || has_ipv6(bare)) {
        return true;
    }
    has_ipv4(word) || !is_time(word) && (word.split([':', '/']).any(is_host_name) || is_host_and_port(word))
}

/// Whether the word ends with an IPv6 address after other parts, as in `address:fe80::1`.
fn has_ipv6(word: &str) -> bool {
    word.contains("::") || word.match_indices(':').any(|(at, _)| word[at + 1..].parse::<Ipv6Addr>().is_ok())
}

/// Whether four numbers with dots between them are anywhere in the word.
fn has_ipv4(word: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.len() <= 3 && part.bytes().all(|byte| byte.is_ascii_digit());
    word.split(|c: char| !c.is_ascii_digit() && c != '.').any(|part| {
        let numbers: Vec<&str> = part.split('.').collect();
        numbers.windows(4).any(|four| four.iter().all(|part| is_number(part)))
    })
}

/// Names with dots, whose last part is no number. A file name looks the same.
fn is_host_name(word: &str) -> bool {
    let labels: Vec<&str> = word.split('.').collect();
    let is_label =
        |label: &&str| !label.is_empty() && label.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_'));
    let ends_as_name = labels.last().is_some_and(|last| last.len() > 1 && last.chars().any(char::is_alphabetic));
    word == "localhost" || (labels.len() > 1 && labels.iter().all(is_label) && ends_as_name)
}

/// `engine:2375`
fn is_host_and_port(word: &str) -> bool {
    word.rsplit_once(':').is_some_and(|(host, port)| {
        let is_port = (2..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
        is_port && host.chars().any(char::is_alphabetic) && !host.contains(':')
    })
}

/// `2026-11-16t12:00`
fn is_time(word: &str) -> bool {
    let Some((date, time)) = word.split_once('t') else { return false };
    let is_date = date.len() == 10 && date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    is_date && time.bytes().all(|byte| byte.is_ascii_digit() || b":.z+-".contains(&byte))
}

/// Ids of machines, containers and other things of a provider.
fn is_id(word: &str) -> bool {
    // The name of a slot is shown to its user anyway.
    if is_slot_name(word) {
        return false;
    }
    let is_hex = |part: &str| {
        let hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = part.bytes().filter(u8::is_ascii_digit).count();
        hex && (part.len() >= 12 || part.len() >= 8 && digits > 0 && digits < part.len())
    };
    let mixed = word.chars().any(|c| c.is_ascii_digit()) && word.chars().any(char::is_alphabetic);
    let is_one_word = word.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '+'));
    word.starts_with("arn:")
        || word.split(|c: char| !c.is_alphanumeric()).any(is_hex)
        || (is_one_word && mixed && word.len() >= LONG && !is_time(word))
}

fn is_slot_name(word: &str) -> bool {
    let Some(rest) = word.strip_prefix("pool-") else { return false };
    let Some((_, number)) = rest.rsplit_once('-') else { return false };
    (3..=6).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_operator_are_replaced() {
        for (text, expected) in [
            ("GET https://ada:hunter2@registry.example.com/v2/?a=b failed", "GET [address] failed"),
            ("dial unix:///var/run/docker.sock: refused", "dial [address]: refused"),
            ("dial unix:/var/run/docker.sock: refused", "dial [path]: refused"),
            ("cannot run /var/lib/greenroom/slots/x", "cannot run [path]"),
            ("open '/etc/greenroom/token'.", "open '[path]'."),
            (r"C:\Users\ada\key", "[path]"),
            ("file=/root/.ssh/id_rsa", "[path]"),
            ("%2Fvar%2Flib%2Fgreenroom", "[path]"),
            ("10.0.0.7 refused", "[address] refused"),
            ("tcp 10.0.0.7:2375->10.0.0.9:443: reset", "tcp [address]>[address]: reset"),
            ("node-10.1.2.3-a", "[address]"),
            ("from fe80::1%eth0 to [2001:db8::5]:443", "from [address] to [[address]]:443"),
            ("::1, ::ffff:10.0.0.1 and address:fd00::7", "[address], [address] and [address]"),
            ("2001:db8:0:0:0:0:0:1", "[address]"),
            ("Engine at docker-7.internal.example.com:2376!", "Engine at [address]!"),
            ("localhost and engine:2375", "[address] and [address]"),
            ("ssh root@bastion", "ssh [address]"),
            ("grb_a.b", "[token]"),
            (
                "token grs_1, key=grk_2; (grp_3) \"grr_4\" xgrk_5",
                "token [token], [token]; ([token]) \"[token]\" [token]",
            ),
            ("Authorization: Bearer abc", "Authorization: Bearer [token]"),
            (r#"{"password": "hunter2", "user": "ada"}"#, r#"{"password": "[token]", "user": "ada"}"#),
            ("DB_PASSWORD=hunter2 host=10.0.0.1", "DB_PASSWORD=[token] host=[address]"),
            ("password: hunter2", "password: [token]"),
            (r#"{"token": "hunter2"}"#, r#"{"token": "[token]"}"#),
            ("at http://[fe80::1]:80/a,b/c (https://host/(x);y)", "at [address] ([address])"),
            ("/var/lib/a,b/c.", "[path]."),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "[token]"),
            ("AKIAIOSFODNN7EXAMPLE", "[token]"),
            ("instance i-0abc123def4567890 ended", "instance [id] ended"),
            ("i-0abc123d in subnet-0bb1c79de3EXAMPLE", "[id] in [id]"),
            ("container 4c01db0b339c exited", "container [id] exited"),
            ("alloc 8ba85cef-2e8a-4ae1-8b4a-3b5e6f3f1c11", "alloc [id]"),
            ("app kc8w4sck0gs4ckw8ogs0wkow", "app [id]"),
            ("arn:aws:sqs:eu-west-1:123456789012:queue", "[id]"),
            ("pull registry.example.com/team/bot:1.4", "pull [path]"),
            ("pull team/bot:1.4", "pull [path]"),
        ] {
            assert_eq!(redact(text), expected, "{text}");
        }
    }

    #[test]
    fn plain_words_stay() {
        for text in [
            "the provider did not answer within 3 s",
            "exited with 137: out of memory, and/or killed (signal 9)",
            "the slot pool-google-meet-long-name-001 is starting",
            "at 2026-11-16T12:00:00.123Z, 12:30, 300000 ms, 1.5 GiB, version 1.4.2",
            "token expired; the secret of success",
            "deploy_failed\n\tline two — ünïcode ✓",
            "",
        ] {
            let expected = text.replace("secret of", "secret [token]");
            assert_eq!(redact(text), expected);
        }
    }
}
