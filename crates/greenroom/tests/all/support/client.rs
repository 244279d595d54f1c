//! An HTTP client of the API, and a bot that reports its own state by callbacks.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::found;

/// Calls a server with one token.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

/// A Google Meet link, different for each number.
pub fn meet_link(number: usize) -> String {
    let letter = |digit: u32| char::from(b'a' + u8::try_from(number / 26_usize.pow(digit) % 26).unwrap());
    let code: String = (0..3).map(letter).collect();
    format!("https://meet.google.com/abc-defg-{code}")
}

impl Client {
    pub fn new(url: &str, token: &str) -> Self {
        Self { http: reqwest::Client::new(), url: url.to_owned(), token: token.to_owned() }
    }

    /// A client that opens a connection for each call, so that a balancer can send each call to another server.
    pub fn anywhere(url: &str, token: &str) -> Self {
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Self { http, ..Self::new(url, token) }
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// A client with the same token for another server.
    pub fn on(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    /// A client with another token for the same server.
    pub fn with(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token)
    }

    pub async fn send(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.try_send(method, path, body).await.unwrap()
    }

    /// An error means that the connection broke, so nothing was acknowledged.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), reqwest::Error> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// An answer that is not JSON.
    pub async fn text(&self, path: &str) -> String {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().text().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Creates a user as an operator, and returns a client with its API key.
    pub async fn user(&self, limit: i64) -> Client {
        let body = json!({"email": "ada@example.com", "name": "Ada", "max_concurrent_bots": limit});
        let (status, body) = self.post("/admin/users", body).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
        self.with(body["api_key"].as_str().unwrap())
    }

    /// Requests a bot that must be admitted, and returns its id.
    pub async fn bot(&self, link: &str) -> String {
        let bot = self.ask(json!({"meeting_url": link})).await;
        bot["id"].as_str().unwrap().to_owned()
    }

    /// Requests a bot that must be admitted.
    pub async fn ask(&self, bot_request: Value) -> Value {
        let (status, mut body) = self.post("/bots", bot_request).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
        body["bot"].take()
    }

    /// The current state of a bot.
    pub async fn show_bot(&self, bot: &str) -> Value {
        self.get(&format!("/bots/{bot}")).await["bot"].take()
    }

    /// Waits until a bot has a status, and returns the bot.
    pub async fn until(&self, bot: &str, status: &str) -> Value {
        found(&format!("the bot is {status}"), async || {
            let bot = self.show_bot(bot).await;
            (bot["status"] == status).then_some(bot)
        })
        .await
    }

    /// Stops a bot, as its user.
    pub async fn stop(&self, bot: &str) {
        let (status, body) = self.send(Method::DELETE, &format!("/bots/{bot}"), None).await;
        assert!(status.is_success(), "{body}");
    }
}

/// Acts as the process of a bot: it has the bot's data and sends its callbacks.
#[derive(Clone, Debug)]
pub struct Life {
    pub client: Client,
    pub connection_id: String,
}

impl Life {
    /// Assigns the bot, as an operator does by hand.
    pub async fn assign(admin: &Client, bot: &str) -> Self {
        let (status, data) = admin.post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
        assert_eq!(status, StatusCode::CREATED, "{data}");
        Self::from_data(admin, &data)
    }

    pub fn from_data(admin: &Client, data: &Value) -> Self {
        Self {
            client: admin.with(data["token"].as_str().unwrap()),
            connection_id: data["connection_id"].as_str().unwrap().to_owned(),
        }
    }

    pub fn on(&self, url: &str) -> Self {
        Self { client: self.client.on(url), connection_id: self.connection_id.clone() }
    }

    pub async fn try_say(&self, callback: &str, mut body: Value) -> Result<(StatusCode, Value), reqwest::Error> {
        body["connection_id"] = json!(self.connection_id);
        let method = if callback == "status" { Method::PATCH } else { Method::POST };
        self.client.try_send(method, &format!("/callback/{callback}"), Some(body)).await
    }

    pub async fn say(&self, callback: &str, body: Value) -> (StatusCode, Value) {
        self.try_say(callback, body).await.unwrap()
    }

    /// Sends a callback that must be accepted, and returns the answer.
    pub async fn report(&self, callback: &str, body: Value) -> Value {
        let (status, answer) = self.say(callback, body).await;
        assert_eq!(status, StatusCode::OK, "{callback}: {answer}");
        answer
    }
}
