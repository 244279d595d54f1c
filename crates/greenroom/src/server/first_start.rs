//! This module creates what a server needs once, at the first start with a database: the secret that signs tokens, the
//! installation's id, and, if no admin token is configured, an admin token and a first user with a key. All of this is
//! one transaction, so if several replicas start at once, one of them creates and shows it.

use secrecy::SecretString;
use serde_json::Map;

use crate::admission::Admission;
use crate::admission::api_keys::{self, ApiKey};
use crate::admission::users::NewUser;
use crate::context::Context;
use crate::server::ServerError;
use crate::store::{StoreError, UserRow};

pub const SIGNING_SECRET: &str = "signing_secret";
const ADMIN_TOKEN_HASH: &str = "admin_token_hash";
pub const INSTALLATION: &str = "installation";
const FIRST_USER: &str = "first_user";

/// How many bots the first user may run at once.
const FIRST_LIMIT: i64 = 10;

/// What this start has created. It can be shown only now.
#[derive(Default)]
pub struct FirstStart {
    pub admin_token: Option<String>,
    pub user: Option<(UserRow, ApiKey)>,
}

impl FirstStart {
    pub fn is_empty(&self) -> bool {
        self.admin_token.is_none() && self.user.is_none()
    }
}

impl std::fmt::Debug for FirstStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FirstStart").field("user", &self.user.as_ref().map(|(user, _)| user.id)).finish_non_exhaustive()
    }
}

/// The values that hold from now on.
#[derive(Debug)]
pub struct InstallationSettings {
    pub signing_secret: SecretString,
    pub admin_token_hash: String,
    /// The id of this installation, which separates it from others at a shared provider.
    pub id: String,
}

/// Creates what is missing, and commits it after `show` has succeeded. If it could not be shown, the next start creates
/// it again.
pub async fn create_missing(
    context: &Context,
    admission: &Admission,
    configured: Option<&SecretString>,
    show: impl FnOnce(&FirstStart) -> std::io::Result<()>,
) -> Result<InstallationSettings, ServerError> {
    use secrecy::ExposeSecret;

    let mut first = FirstStart::default();
    let lost = |name: &'static str| {
        let (table, row, found) = ("settings".to_owned(), format!("name {name}"), "`nothing`".to_owned());
        StoreError::Inconsistent { call: "first", table, column: "value", row, found }
    };
    let mut tx = context.store.begin().await?;
    tx.keep_setting(SIGNING_SECRET, &context.random.secret()?).await?;
    let signing_secret = tx.setting(SIGNING_SECRET).await?.ok_or_else(|| lost(SIGNING_SECRET))?;
    tx.keep_setting(INSTALLATION, &uuid::Uuid::new_v4().simple().to_string()).await?;
    let installation = tx.setting(INSTALLATION).await?.ok_or_else(|| lost(INSTALLATION))?;
    let admin_token_hash = match configured {
        Some(token) => api_keys::hash(token.expose_secret()),
        None => {
            let token = api_keys::make_admin_token(&context.random)?;
            if tx.keep_setting(ADMIN_TOKEN_HASH, &api_keys::hash(&token)).await? {
                first.admin_token = Some(token);
            }
            if tx.keep_setting(FIRST_USER, "made").await? && !tx.any_user().await? {
                let new = NewUser {
                    email: "first@localhost".to_owned(),
                    name: "First user".to_owned(),
                    image_url: None,
                    max_concurrent_bots: FIRST_LIMIT,
                    min_priority: 0,
                    data: Map::new(),
                };
                first.user = Some(admission.create_user_in(&mut tx, new).await?);
            }
            tx.setting(ADMIN_TOKEN_HASH).await?.ok_or_else(|| lost(ADMIN_TOKEN_HASH))?
        }
    };
    show(&first).map_err(ServerError::Show)?;
    tx.commit().await?;
    Ok(InstallationSettings { signing_secret: signing_secret.into(), admin_token_hash, id: installation })
}
